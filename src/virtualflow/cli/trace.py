"""``vf trace``: make traces of jobs, or read those that others have published."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from virtualflow.cli.files import check_file, writing
from virtualflow.cli.help import Command
from virtualflow.cli.screen import print_line
from virtualflow.sim import importers
from virtualflow.sim.generate import MIXES, Recipe
from virtualflow.sim.generate import generate as make
from virtualflow.sim.trace import Trace, write

trace = typer.Typer(no_args_is_help=True, help="Make traces of jobs for `vf simulate`, or import published ones.")
Output = Annotated[Path, typer.Option("--output", "-o", help="The trace to write.", metavar="FILE")]


@trace.command(cls=Command)
def generate(
    jobs: Annotated[int, typer.Option(help="The number of jobs.", metavar="N")] = 20,
    rate: Annotated[str, typer.Option(help="Arrivals, on average: 12/h, 0.5/min, 100/day.", metavar="N/UNIT")] = (
        "12/h"
    ),
    mix: Annotated[str, typer.Option(help=f"The mix of jobs: {', '.join(MIXES)}.", metavar="NAME")] = "paper",
    seed: Annotated[int, typer.Option(help="The same seed gives the same trace.", metavar="SEED")] = 0,
    most_devices: Annotated[int, typer.Option(help="The largest demand of a job.", min=1, metavar="N")] = 8,
    output: Output = Path("trace.json"),
) -> None:
    """Generate a random trace: Poisson arrivals, the paper's workload table, priorities 1, 5 and 10."""
    check_file(output)
    _write(make(Recipe(jobs, rate, mix, seed, most_devices)), output)


@trace.command("import", cls=Command)
def import_(
    file: Annotated[Path, typer.Argument(help="A trace in a known format.", metavar="FILE")],
    output: Output = Path("trace.json"),
) -> None:
    """Read the paper's, Gavel's, Philly's, Pollux' or Tiresias' trace. (`vf simulate` reads them directly too.)"""
    check_file(output)
    _write(importers.read(file), output)


def _write(trace: Trace, output: Path) -> None:
    with writing(output):
        write(trace, output)
    span = trace.jobs[-1].arrival_seconds - trace.jobs[0].arrival_seconds
    demand = max(job.demand for job in trace.jobs)
    print_line(f"wrote {output}: {len(trace.jobs)} jobs over {span / 3600:.1f} h, demands up to {demand}")
