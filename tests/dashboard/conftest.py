"""A real browser for tests of the dashboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.scripted import Scripted, served

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"there is no {CHROMIUM}: make data")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=str(CHROMIUM), args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page of its own for each test. No script may fail on it, and nothing may be blocked."""
    complaints: list[str] = []
    page = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme="light", reduced_motion="reduce")
    page.set_default_timeout(20_000)  # a machine may be busy
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if _is_ours(message) else None)
    yield page
    page.close()
    assert not complaints, complaints


def _is_ours(message: Any) -> bool:
    # A server that refuses or goes away is what some tests are about.
    return message.type == "error" and not message.text.startswith("Failed to load resource")


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    with served(Scripted()) as scripted:
        yield scripted
