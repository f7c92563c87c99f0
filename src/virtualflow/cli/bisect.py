"""``vf bisect``: two runs differ; since which step, where in it, and why?"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from virtualflow.cli.options import devices_of
from virtualflow.cli.replay import showing
from virtualflow.cli.screen import print_line
from virtualflow.cli.verify import print_verdict
from virtualflow.job.folder import JobFolder
from virtualflow.replaying.bisection import Bisected
from virtualflow.replaying.bisection import bisect as bisect_runs
from virtualflow.replaying.step_replay import InterruptedReplay, RecordedRun


def bisect(
    one: Annotated[str, typer.Argument(help="A job's id or name.", metavar="RUN")],
    other: Annotated[str, typer.Argument(help="The run to compare it with.", metavar="RUN")],
    devices: Annotated[
        str | None,
        typer.Option(
            help="The number of devices to replay the step on; by default as many as each run had.", metavar="N"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find out why two runs differ: the first step, and the virtual node, module and tensor where they part.

    Facts are compared first. Then the step is replayed for both runs, from their last checkpoints before it. Exit code
    0 means equal, 1 means not.
    """
    runs = [RecordedRun.of(JobFolder.of(name)) for name in (one, other)]
    on = devices_of(devices, None, None, None).names if devices is not None else None
    try:
        with showing(quiet=as_json) as show:
            found = bisect_runs(runs[0], runs[1], on, show)
    except InterruptedReplay as interruption:
        raise typer.Exit(interruption.code) from None
    if as_json:
        print(json.dumps(_facts(found, [run.folder.path.name for run in runs]), indent=2))
    else:
        _print(found, [run.folder.path.name for run in runs])
    raise typer.Exit(0 if found.verdict.equal else 1)


def _facts(found: Bisected, names: list[str]) -> dict[str, object]:
    where = asdict(found.parting) if found.parting is not None else dict.fromkeys(("phase", "node", "module", "tensor"))
    repeats = dict(zip(names, found.repeats, strict=True)) if found.repeats is not None else {}
    return {**asdict(found.verdict), **where, "repeats": repeats, "cause": found.cause}


def _print(found: Bisected, names: list[str]) -> None:
    print_verdict(found.verdict)
    if found.parting is not None:
        print_line(f"  they part in {found.parting}")
    for name, repeats in zip(names, found.repeats or (), strict=False):
        print_line(f"  job {name}: a replay gives {'what' if repeats else 'something else than'} it has recorded")
    if found.cause:
        print_line(f"  {found.cause}")
