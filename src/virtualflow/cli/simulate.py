"""``vf simulate``: what would a scheduler do to these jobs?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from virtualflow.cluster.policies import registry
from virtualflow.cluster.policies.base import Options
from virtualflow.core.devices import parse_pools
from virtualflow.sim import compare, costs, importers
from virtualflow.sim.compare import Comparison, Setting
from virtualflow.sim.workloads import paper_speeds

Flag = Annotated[bool, typer.Option()]


def simulate(
    trace: Annotated[Path, typer.Argument(help="A trace in any known format: see `vf trace`.", metavar="TRACE")],
    devices: Annotated[
        str, typer.Option(help="The cluster: V100:8, or P100:4+4 for two machines, with commas.", metavar="DEVICES")
    ],
    policy: Annotated[
        list[str], typer.Option(help=f"One or more of {', '.join(registry.BUILT_IN)}, or plugged in.", metavar="NAME")
    ] = ["wfs"],  # noqa: B006, typer copies it
    seeds: Annotated[int, typer.Option(help="How many traces like this one, for intervals.", min=1, metavar="N")] = 1,
    costs_name: Annotated[
        str, typer.Option("--costs", help="Resizing costs: paper, measured (ours) or none.", metavar="NAME")
    ] = "measured",
    rounding: Annotated[
        str, typer.Option("--round", help="wfs: shares of any size, or pow2 as the paper's author did.", metavar="RULE")
    ] = "any",
    backfill: Annotated[
        bool, typer.Option("--backfill", help="priority, fifo: small jobs may pass a blocked one.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run a trace of jobs under scheduling policies, in virtual time, and compare them."""
    setting = Setting(
        parse_pools(devices), paper_speeds(), costs.named(costs_name), Options(round=rounding, backfill=backfill)
    )
    loaded = importers.read(trace)
    names = list(dict.fromkeys(policy))
    with Progress(console=Console(stderr=True), transient=True, disable=as_json) as bar:
        task = bar.add_task("simulating", total=None)

        def report(done: int, total: int) -> None:
            if done % 64 == 0 or done == total:
                bar.update(task, completed=done, total=total)

        comparison = compare.compare(loaded, names, setting, seeds, report)
    if as_json:
        print(json.dumps(_as_json(comparison)))
    else:
        _print(comparison)


def _as_json(comparison: Comparison) -> dict[str, Any]:
    return {"policies": {name: found.as_json() for name, found in comparison.policies.items()}}


def _print(comparison: Comparison) -> None:
    table = Table("policy", *(title for title, _ in compare.COLUMNS))
    for name, found in comparison.policies.items():
        table.add_row(name, *(show(found.intervals) for _, show in compare.COLUMNS))
    Console().print(table)
