"""``python -m tests.dashboard.screenshots FOLDER``: the pictures of the page in the documents."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import scheduling
from playwright.sync_api import sync_playwright

from tests.dashboard.busy import a_busy_day, a_report
from tests.dashboard.conftest import ARGUMENTS, CHROMIUM
from tests.dashboard.scripted import served
from virtualflow.dashboard import simulation
from virtualflow.dashboard.page import standalone
from virtualflow.sim import compare, costs, importers

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
        for name, policy in (("scheduling-wfs", "wfs"), ("scheduling-priority", "priority")):
            _allocation(browser, Path(temporary), policy, folder / f"{name}.png")
        browser.close()


def _allocation(browser: Any, temporary: Path, policy: str, picture: Path) -> None:
    """The chart of the paper's 20 jobs, for docs/explanation/scheduling.md."""
    trace = importers.read(scheduling.TRACES / f"{scheduling.LARGE}.json")
    chosen = scheduling.setting("V100:8", costs.PAPER, "pow2")
    report = temporary / f"{policy}.html"
    result = compare.compare(trace, [policy], chosen)
    report.write_text(standalone(simulation.of(result, chosen.pools, trace.source)))
    page = browser.new_page(viewport=DESK, color_scheme="light")
    page.goto(report.as_uri())
    page.locator(".box").first.wait_for()
    page.wait_for_timeout(500)
    page.locator("section", has=page.locator("#allocation-chart")).screenshot(path=picture)
    page.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
