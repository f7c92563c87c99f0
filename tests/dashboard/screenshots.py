"""``python -m tests.dashboard.screenshots FOLDER``: the pictures of docs/how-to/dashboard.md."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from tests.dashboard.busy import a_busy_day, a_report
from tests.dashboard.conftest import ARGUMENTS, CHROMIUM
from tests.dashboard.scripted import served
from virtualflow.dashboard.page import standalone

DESK, PHONE = {"width": 1440, "height": 1080}, {"width": 390, "height": 844}


def main(folder: Path) -> None:
    with served(a_busy_day()) as scripted, sync_playwright() as started, tempfile.TemporaryDirectory() as temporary:
        browser = started.chromium.launch(executable_path=str(CHROMIUM), args=list(ARGUMENTS))
        report = Path(temporary) / "report.html"
        report.write_text(standalone(a_report(20, "V100:4,P100:4", ["wfs", "priority", "las-mixed"], seed=3)))
        pictures: list[tuple[str, str, dict[str, int], Any]] = [
            ("dashboard-light", scripted.address, DESK, "light"),
            ("dashboard-dark", scripted.address, DESK, "dark"),
            ("dashboard-phone", scripted.address, PHONE, "light"),
            ("dashboard-report", report.as_uri(), DESK | {"height": 860}, "light"),
        ]
        for name, address, size, scheme in pictures:
            page = browser.new_page(viewport=size, color_scheme=scheme)
            page.goto(address)
            page.locator("#events tr").first.wait_for()
            page.wait_for_timeout(500)
            page.screenshot(path=folder / f"{name}.png")
            page.close()
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
