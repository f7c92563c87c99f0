"""The page's files, and a copy of it in one file with its data inside."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STATIC = Path(__file__).parent / "static"
# In the order of their imports, so that they may follow each other in one script.
MODULES = (
    "format.js", "dom.js", "colours.js", "stacking.js", "api.js", "allocation.js", "curves.js", "jobs.js", "devices.js",
    "cells.js", "detail.js", "report.js", "actions.js", "roles.js", "app.js",
)  # fmt: skip
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


def standalone(data: Mapping[str, Any]) -> str:
    """The page with *data*, for a browser without a server: no other file and no connection is needed."""
    page = _read("index.html")
    icon = base64.b64encode(_read("favicon.svg").encode()).decode()
    page = page.replace('href="static/favicon.svg"', f'href="data:image/svg+xml;base64,{icon}"')
    page = page.replace("<title>", f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n<title>')
    page = re.sub(
        r'<link rel="stylesheet" href="static/([^"]+)">',
        lambda link: f"<style>\n{_read(link.group(1))}</style>",
        page,
    )
    # "<" can begin no tag inside JSON when it is written as an escape.
    embedded = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    scripts = (
        f'<script type="application/json" id="vf-data">{embedded}</script>\n'
        f"<script>\n{_read('vendor/uPlot.iife.min.js')}</script>\n"
        f'<script type="module">\n{_bundle()}</script>\n'
    )
    begin, end = page.index("<script src="), page.index("</body>")
    return page[:begin] + scripts + page[end:]


def _bundle() -> str:
    """All modules in one: they share their names and need no imports."""
    text = "\n".join(_read(name) for name in MODULES)
    return re.sub(r"^export ", "", re.sub(r"^import [^;]*;\n", "", text, flags=re.MULTILINE), flags=re.MULTILINE)


def _read(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")
