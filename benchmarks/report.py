"""Tables for people, raw results as JSON, and the ratios of runs that took turns."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from virtualflow.core.devices import Pool
from virtualflow.dashboard import page, simulation
from virtualflow.sim.compare import side_by_side
from virtualflow.sim.result import Run

FOLDER = Path("out/bench")  # figures and tables of the last run
RESULTS = Path(__file__).with_name("results")  # raw results, committed: the documents' tables are made from them


@dataclass(frozen=True, slots=True)
class Ratio:
    """How fast one side was against another: the median over rounds, and the middle half of them."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.2f} to {self.high:.2f})"


def ratio(baseline_seconds: Sequence[float], seconds: Sequence[float]) -> Ratio:
    """Throughput against the baseline's, from the rounds' own ratios: drift of the machine cancels out."""
    ratios = [base / own for base, own in zip(baseline_seconds, seconds, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    return Ratio(median, low, high)


class Section:
    """One part of the report: tables on stdout, and the raw results in ``benchmarks/results``.

    Results of a quick run are a look, not a figure: they go to ``out/bench``.
    """

    def __init__(self, name: str, *, quick: bool) -> None:
        self._name = name
        self._folder = FOLDER if quick else RESULTS
        self._markdown: list[str] = []

    def show(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Print a table, and keep it for ``save``."""
        texts = [[str(cell) for cell in row] for row in rows]
        table = Table()
        for number, column in enumerate(columns):
            table.add_column(column, justify="right" if number else "left")
        for row in texts:
            table.add_row(*row)
        # Wide, whatever the terminal: a table in a log must not be cut.
        console = Console(width=130, highlight=False)
        console.print(f"\n{title}", markup=False)
        console.print(table)
        lines = [columns, ["---"] * len(columns), *texts]
        self._markdown += [f"{title}\n", *(f"| {' | '.join(line)} |" for line in lines), ""]

    def save(self, content: Any) -> None:
        """Write *content* with the machine and the date, and the tables as Markdown."""
        for folder in (FOLDER, self._folder):
            folder.mkdir(parents=True, exist_ok=True)
        result = {"section": self._name, "date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": _machine()}
        text = json.dumps(result | {"results": content}, indent=1, default=asdict)
        (self._folder / f"{self._name}.json").write_text(text + "\n")
        (FOLDER / f"{self._name}.md").write_text("\n".join(self._markdown))


def pyplot() -> Any:
    """matplotlib's, drawing into files."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def allocation_page(name: str, runs: Mapping[str, Run], pools: Sequence[Pool]) -> None:
    """The page that a simulation's report is, with these *runs*: who had which devices when."""
    data = simulation.of(side_by_side(runs), pools, name)
    figure_path(name).with_suffix(".html").write_text(page.standalone(data), encoding="utf-8")


def figure_path(name: str) -> Path:
    FOLDER.mkdir(parents=True, exist_ok=True)
    return FOLDER / f"{name}.png"


def _machine() -> dict[str, str | int | None]:
    cores, python = os.cpu_count(), platform.python_version()
    return {"processor": _processor(), "cores": cores, "torch": torch.__version__, "python": python}


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
