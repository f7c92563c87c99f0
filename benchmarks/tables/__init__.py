"""Puts the figures of ``benchmarks/results`` into the documents.

A document marks where a table or a single figure goes::

    <!-- figures memory -->...<!-- end -->

What stands between the marks is made from the raw results, so that a figure in two documents is the same in both.
``raw`` reads results, the other modules make the tables; ``python -m benchmarks.tables`` writes them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from benchmarks.report import RESULTS
from benchmarks.tables import clusters, grids, libraries, paper, pipelines, scale, scheduling, sharded, training
from benchmarks.tables.raw import measured_on

ROOT = Path(__file__).resolve().parent.parent.parent
MARKED = re.compile(r"<!-- figures ([\w.-]+) -->(\s*)(.*?)(\s*)<!-- end -->", re.DOTALL)
FIGURES: dict[str, Callable[[], str]] = {
    **training.FIGURES,
    **sharded.FIGURES,
    **scheduling.FIGURES,
    **clusters.FIGURES,
    **scale.FIGURES,
    **paper.FIGURES,
    **pipelines.FIGURES,
    **grids.FIGURES,
    **libraries.FIGURES,
    **{
        f"{path.stem}.measured-on": (lambda section=path.stem: measured_on(section))
        for path in sorted(RESULTS.glob("*.json"))
    },
}


def filled(text: str, where: str = "a document") -> str:
    """*text* with each marked place filled from the results."""

    def replace(match: re.Match[str]) -> str:
        name, before, _, after = match.groups()
        if name not in FIGURES:
            raise SystemExit(f"{where} asks for figures {name!r}; there are {', '.join(FIGURES)}")
        return f"<!-- figures {name} -->{before}{FIGURES[name]()}{after}<!-- end -->"

    return MARKED.sub(replace, text)


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
