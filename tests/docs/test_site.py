"""The documents build as a site, without a warning, and whoever begins at its front page finds each of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="the site's theme is not installed: pip install '.[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "reference" / "api" / "index.html").exists()


@pytest.mark.parametrize("contents", ["docs/index.md", "README.md"])
def test_every_page_is_listed(contents: str) -> None:
    docs, text = ROOT / "docs", (ROOT / contents).read_text()
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md")} - {"index.md"}
    assert sorted(page for page in pages if page not in text) == []
