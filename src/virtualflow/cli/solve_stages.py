"""``vf solve`` for a model in stages: the fastest grid of cells, beside plain data parallelism and one pipeline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from virtualflow.cli.cell_table import colours_of, print_grid
from virtualflow.cli.files import writing
from virtualflow.cli.memory import memory_by_type
from virtualflow.core.devices import Pool
from virtualflow.core.sizes import size_text
from virtualflow.core.stage_profile import StagedWorkload
from virtualflow.errors import ConfigError
from virtualflow.solver import grid_plan
from virtualflow.solver.grid_costs import GridCosts, costs_at
from virtualflow.solver.grid_forecast import over_capacity
from virtualflow.solver.grid_search import GridAnswer, GridPlan, solve_grid


def solve_stages(
    known: StagedWorkload,
    pools: Sequence[Pool],
    batch_size: int,
    virtual_nodes: int | None,
    kind: str,
    copies: int,
    memory: str | None,
    output: Path | None,
    *,
    as_json: bool,
    console: Console,
) -> None:
    """Find the grid, print it, and write it as a plan."""
    costs = _costs(known, pools, batch_size, virtual_nodes, memory)
    assert virtual_nodes is not None
    answer = solve_grid(costs, pools, virtual_nodes, kind, copies)
    report = grid_plan.to_json(answer, pools, known.name, batch_size, virtual_nodes, kind, copies)
    if output is not None:
        with writing(output):
            output.write_text(json.dumps(report, indent=2) + "\n")
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        _show(console, answer, report)


def _costs(
    known: StagedWorkload, pools: Sequence[Pool], batch_size: int, virtual_nodes: int | None, memory: str | None
) -> GridCosts:
    if virtual_nodes is None:
        raise ConfigError(
            f"{known.name} is cut into stages: say how many virtual nodes the job has, as its script does, with "
            "--virtual-nodes. Their number is part of the job."
        )
    if batch_size % virtual_nodes:
        raise ConfigError(
            f"{virtual_nodes} virtual nodes do not divide a batch of {batch_size} evenly; the solver wants one node "
            "size for a model in stages."
        )
    types = [pool.device_type for pool in pools]
    return costs_at(known, types, batch_size // virtual_nodes).with_memory(memory_by_type(memory, types, "--memory"))


def _show(console: Console, answer: GridAnswer, report: dict[str, Any]) -> None:
    best = answer.best
    console.print(Text(f"{best.shape}: {best.step_seconds:.4g} s a step, ", style="bold"), end="")
    console.print(f"{report['examples_per_second']:.5g} examples/s, bubble {best.forecast.bubble:.0%}")
    rows = [[route[stage] for route in best.cells.routes] for stage in range(best.cells.stages)]
    print_grid(rows, colours_of(best.cells.devices), console)
    table = Table("device", "bubble", "state", "activations", "memory", "of", "sent in a step")
    for device in best.forecast.devices:
        figures = (device.state_bytes, device.activation_bytes, device.memory_bytes, device.capacity_bytes)
        table.add_row(device.device, f"{device.bubble:.0%}", *map(size_text, figures), size_text(device.sent_bytes))
    console.print(table)
    for name, plan in answer.alternatives:
        console.print(f"{name}: {_compared(plan, best)}", soft_wrap=True)
    if answer.is_proven:
        console.print("Every grid of these devices was compared: none is faster.")
    else:
        console.print(f"No grid of these devices can be faster than {answer.least_seconds:.4g} s a step.")
    used = ",".join(f"{entry['type']}:{entry['count']}" for entry in report["devices"])
    console.print(f"--devices {used} --mapping {report['mapping']}", soft_wrap=True)


def _compared(plan: GridPlan, best: GridPlan) -> str:
    if full := over_capacity(plan.forecast):
        worst = max(full, key=lambda device: device.memory_bytes - device.capacity_bytes)
        return (
            f"does not fit: needs {size_text(worst.memory_bytes)} on {worst.device}, which has "
            f"{size_text(worst.capacity_bytes)}"
        )
    slower = plan.step_seconds / best.step_seconds - 1
    return f"{plan.shape}, {plan.step_seconds:.4g} s a step" + (f", {slower:.1%} slower" if slower > 1e-9 else "")
