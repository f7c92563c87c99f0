"""The grid of cells of a job whose model is cut into stages, for ``vf explain``: stages down, virtual nodes across."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from virtualflow.cli.options import numbers
from virtualflow.core.cell_schedule import bubbles, peak_activations, timeline
from virtualflow.core.cells import Cells, given_cells, pipelines, with_copies

COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red", "bright_cyan", "bright_magenta")


def rows_of(text: str) -> tuple[tuple[int, ...], ...]:
    """A grid given by hand: a row of device indices for each stage, such as ``0,0/1,1``."""
    return tuple(tuple(numbers(row, "--mapping")) for row in text.split("/"))


def cells_of(stages: int, virtual_nodes: int, devices: tuple[str, ...], mapping: str | None, copies: int) -> Cells:
    """The grid that a job would have on *devices*."""
    if mapping is None:
        return with_copies(pipelines(stages, virtual_nodes, devices), copies)
    return with_copies(given_cells(rows_of(mapping), stages, virtual_nodes, devices), copies)


def cell_report(cells: Cells, pipeline: str) -> dict[str, Any]:
    """What follows from the grid, for stages that take equally long, and twice as long backward as forward."""
    times = timeline(cells, pipeline)
    waits = bubbles(times)
    devices = [
        {
            "device": device,
            "cells": len(cells.cells_of(device)),
            "runs_stages": sorted({stage for stage, _ in cells.cells_of(device)}),
            "holds_stages": list(cells.stages_of(device)),
            "bubble": round(waits.get(device, 0.0), 4),
            "peak_activations": peak_activations(timed.run for timed in times.get(device, ())),
        }
        for device in cells.devices
    ]
    facts = {"stages": cells.stages, "pipeline": pipeline, "grid": cells.rows}
    return facts | {"at_risk": cells.at_risk(), "cells": devices}


def grid_table(rows: Sequence[Sequence[str]], colours: Mapping[str, str]) -> Table:
    """The grid as a picture: stages down, virtual nodes across."""
    grid = Table("stage", *(f"node {node}" for node in range(len(rows[0]))), title="who runs which cell")
    for stage, owners in enumerate(rows):
        grid.add_row(str(stage), *(Text(owner, style=colours[owner]) for owner in owners))
    return grid


def colours_of(devices: Iterable[str]) -> dict[str, str]:
    """A colour for each device."""
    return {device: COLOURS[place % len(COLOURS)] for place, device in enumerate(devices)}


def print_cells(report: dict[str, Any], console: Console) -> None:
    rows = report["cells"]
    colours = colours_of(row["device"] for row in rows)
    console.print(grid_table(report["grid"], colours))
    table = Table("device", "cells", "runs stages", "holds stages", "bubble", "activations at most")
    for row in rows:
        runs, holds = (", ".join(map(str, row[key])) for key in ("runs_stages", "holds_stages"))
        table.add_row(
            Text(row["device"], style=colours[row["device"]]),
            str(row["cells"]),
            runs,
            holds,
            f"{row['bubble']:.0%}",
            f"{row['peak_activations']} cell(s)",
        )
    console.print(table)
    if report["at_risk"]:
        lost = ", ".join(map(str, report["at_risk"]))
        console.print(f"Stage(s) {lost} are on one device each: its death would cost all since the last checkpoint.")
