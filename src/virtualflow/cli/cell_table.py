"""The grid of cells of a job whose model is cut into stages, for ``vf explain``: stages down, virtual nodes across."""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from virtualflow.cli.options import numbers
from virtualflow.core.cells import Cells, given_cells, pipelines, with_copies
from virtualflow.core.devices import type_of
from virtualflow.core.sizes import size_text
from virtualflow.core.wording import counted, listed
from virtualflow.errors import ConfigError
from virtualflow.solver.grid_costs import GridCosts, equal_costs
from virtualflow.solver.grid_forecast import DeviceForecast, forecast
from virtualflow.solver.grid_plan import figures_of

COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red", "bright_cyan", "bright_magenta")
LETTERS = string.ascii_letters
WIDEST = 100  # of a picture whose columns have numbers, in characters


def rows_of(text: str) -> tuple[tuple[int, ...], ...]:
    """A grid given by hand: a row of device indices for each stage, such as ``0,0/1,1``."""
    return tuple(tuple(numbers(row, "--mapping")) for row in text.split("/"))


def cells_of(stages: int, virtual_nodes: int, devices: tuple[str, ...], mapping: str | None, copies: int) -> Cells:
    """The grid that a job would have on *devices*."""
    if len(devices) > virtual_nodes:
        raise ConfigError(
            f"{virtual_nodes} virtual nodes can use at most that many devices, not {len(devices)}. Use fewer devices, "
            "or start the job with more virtual nodes."
        )
    if mapping is None:
        return with_copies(pipelines(stages, virtual_nodes, devices), copies)
    return with_copies(given_cells(rows_of(mapping), stages, virtual_nodes, devices), copies)


def cell_report(cells: Cells, pipeline: str, costs: GridCosts | None = None) -> dict[str, Any]:
    """What follows from the grid.

    Without *costs*, stages take equally long, and twice as long backward as forward; memory and traffic are counted.
    """
    known = costs or equal_costs(cells.stages, {type_of(device) for device in cells.devices})
    step = forecast(cells, known, pipeline)
    report = {"stages": cells.stages, "pipeline": pipeline, "grid": cells.rows, "at_risk": cells.at_risk()}
    if costs is not None:
        report |= {"step_time_seconds": step.step_seconds, "fits": step.fits}
    return report | {"cells": [_row(cells, device, in_bytes=costs is not None) for device in step.devices]}


def _row(cells: Cells, device: DeviceForecast, *, in_bytes: bool) -> dict[str, Any]:
    mine = cells.cells_of(device.device)
    row = {
        "device": device.device,
        "cells": len(mine),
        "runs_stages": sorted({stage for stage, _ in mine}),
        "holds_stages": list(cells.stages_of(device.device)),
        "bubble": round(device.bubble, 4),
        "peak_activations": device.activation_cells,
    }
    return row | (figures_of(device) if in_bytes else {"messages_sent": device.sent_bytes})


def colours_of(devices: Iterable[str]) -> dict[str, str]:
    """A colour for each device."""
    return {device: COLOURS[place % len(COLOURS)] for place, device in enumerate(devices)}


def letters_of(devices: Sequence[str]) -> dict[str, str]:
    """A letter for each device, with a number where there are not enough."""
    number = len(LETTERS)
    return {
        device: LETTERS[place % number] + (str(place // number) if place >= number else "")
        for place, device in enumerate(devices)
    }


def print_grid(rows: Sequence[Sequence[str]], colours: Mapping[str, str], console: Console) -> None:
    """The grid as a picture: a letter and a colour for each device."""
    letters, nodes = letters_of(list(colours)), len(rows[0])
    width = 1 + max(len(str(nodes - 1)), *map(len, letters.values()))
    if width * nodes > WIDEST:
        width = max(map(len, letters.values()))
    else:
        console.print("stage \\ node " + "".join(str(node).rjust(width) for node in range(nodes)), highlight=False)
    for stage, owners in enumerate(rows):
        line = Text(f"{stage:>12} ")
        for owner in owners:
            line.append(letters[owner].rjust(width), style=colours[owner])
        console.print(line, soft_wrap=True)
    names = Text("devices: ")
    for place, (device, letter) in enumerate(letters.items()):
        names.append(", " if place else "").append(f"{letter} = {device}", style=colours[device])
    console.print(names, soft_wrap=True)


def print_cells(report: dict[str, Any], console: Console) -> None:
    rows = report["cells"]
    colours = colours_of(row["device"] for row in rows)
    print_grid(report["grid"], colours, console)
    in_bytes = "step_time_seconds" in report
    more = ("state", "activations", "memory", "sent in a step") if in_bytes else ("messages sent in a step",)
    table = Table("device", "cells", "runs stages", "holds stages", "bubble", "activations at most", *more)
    for row in rows:
        runs, holds = (", ".join(map(str, row[key])) for key in ("runs_stages", "holds_stages"))
        facts = (str(row["cells"]), runs, holds, f"{row['bubble']:.0%}", f"{counted(row['peak_activations'], 'cell')}")
        keys = ("state_bytes", "activation_bytes", "memory_bytes", "sent_bytes")
        figures = [size_text(row[key]) for key in keys] if in_bytes else [str(row["messages_sent"])]
        table.add_row(Text(row["device"], style=colours[row["device"]]), *facts, *figures)
    console.print(table)
    if in_bytes:
        console.print(f"{report['step_time_seconds']:.4g} s a step")
    for row in rows if in_bytes and not report["fits"] else ():
        if not row["fits"]:
            needed, capacity = size_text(row["memory_bytes"]), size_text(row["capacity_bytes"])
            console.print(f"{row['device']} does not fit: it needs {needed} and has {capacity}", style="yellow")
    if report["at_risk"]:
        lost = listed("stage", report["at_risk"])
        console.print(f"On one device only: {lost}. Its death would cost all work since the last checkpoint.")
