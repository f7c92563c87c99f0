"""``python -m tests.dashboard.screenshots FOLDER``: the pictures of docs/dashboard.md."""

from __future__ import annotations

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.dashboard.busy import a_busy_day
from tests.dashboard.conftest import ARGUMENTS, CHROMIUM
from tests.dashboard.scripted import served

VIEWS = {
    "dashboard-light": {"viewport": {"width": 1440, "height": 1000}, "color_scheme": "light"},
    "dashboard-dark": {"viewport": {"width": 1440, "height": 1000}, "color_scheme": "dark"},
    "dashboard-phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
}


def main(folder: Path) -> None:
    with served(a_busy_day()) as scripted, sync_playwright() as started:
        browser = started.chromium.launch(executable_path=str(CHROMIUM), args=list(ARGUMENTS))
        for name, view in VIEWS.items():
            page = browser.new_page(**view)
            page.goto(scripted.address)
            page.locator("#events tr").first.wait_for()
            page.wait_for_timeout(500)
            page.screenshot(path=folder / f"{name}.png")
            page.close()
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
