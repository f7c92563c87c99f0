"""Figures in the documents are those of the raw results, and figures in the code too."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from benchmarks import tables
from benchmarks.report import RESULTS
from benchmarks.tables import training

from virtualflow.sim import costs

FIGURES_ONLY = re.compile(
    r"\|[^|]+(\| *[-+]?\d[^|]*){3,}\|"
)  # a row of a table: a name, then only cells that begin with a digit


@pytest.mark.parametrize("document", tables.documents(), ids=lambda path: str(path.relative_to(tables.ROOT)))
def test_the_tables_of_a_document_are_made_from_the_results(document: Path) -> None:
    text = document.read_text()
    assert tables.filled(text, str(document)) == text, "python -m benchmarks.tables brings it up to date"


def test_a_document_that_is_not_current_is_noticed() -> None:
    stale = "grown in <!-- figures elastic.grow -->1 ms<!-- end -->"
    assert tables.filled(stale) != stale


def test_a_mark_without_figures_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"asks for figures 'elastic\.colour'"):
        tables.filled("<!-- figures elastic.colour --><!-- end -->")


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_results_name_their_machine_and_date(path: Path) -> None:
    result = json.loads(path.read_text())
    assert result["section"] == path.stem
    assert result["date"].startswith("20")
    assert {"processor", "cores", "torch", "python"} <= result["machine"].keys()
    assert result["results"]


@pytest.mark.parametrize(
    ("cost", "event"),
    [
        ("boot", "vf run of a script"),
        ("shrink", "shrink 4 to 2"),
        ("grow", "from vf resize"),
        ("grow_pause", "grow 2 to 4"),
    ],
)
def test_the_simulators_measured_costs_are_the_measured_ones(cost: str, event: str) -> None:
    assert getattr(costs.MEASURED, cost) == pytest.approx(training.elastic_median(event), rel=1e-3)


@pytest.mark.parametrize("document", ["performance.md", "paper.md", "explanation/scheduling.md"])
def test_a_table_of_figures_stands_between_marks(document: Path) -> None:
    text = tables.MARKED.sub("", (tables.ROOT / "docs" / document).read_text())
    typed = [line for line in text.splitlines() if FIGURES_ONLY.fullmatch(line)]
    assert typed == []
