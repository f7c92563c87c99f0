"""``vf verify``: are two runs equal, bit by bit?"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from virtualflow.cli.screen import screen
from virtualflow.core.job_names import job_called
from virtualflow.errors import EventStreamError
from virtualflow.events import STREAM, EventReader, streams_in
from virtualflow.events.certificate import Certificate, Verdict, compare_all
from virtualflow.job.folder import all_jobs
from virtualflow.system.home import home


def verify(
    one: Annotated[str, typer.Argument(help="A job's id or name, its folder, or its event stream.", metavar="RUN")],
    other: Annotated[str, typer.Argument(help="The run to compare it with.", metavar="RUN")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare two runs: they are equal, or the first step and value that differ.

    Exit code 0 means equal, 1 means not.
    """
    mine, theirs = _streams(one), _streams(other)
    certificates = {path: _certificate(path) for path in dict.fromkeys((*mine, *theirs))}  # a job that runs writes on
    verdict = compare_all([certificates[path] for path in mine], [certificates[path] for path in theirs])
    if as_json:
        print(json.dumps(asdict(verdict), indent=2))
    else:
        print_verdict(verdict)
    raise typer.Exit(0 if verdict.equal else 1)


def _certificate(path: Path) -> Certificate:
    events = [event for _, event in EventReader(path).read()]
    if not events and path.stat().st_size:
        raise EventStreamError(f"{path} is no event stream: it is not text, or none of its lines is an event")
    return Certificate.of(events, str(path))


def _streams(run: str) -> list[Path]:
    """The streams of all Trainers of a run, in order; of a stream's own path just that one."""
    if Path(run).is_file():
        return [Path(run)]
    for folder in (Path(run), home() / "jobs" / run):
        if (folder / STREAM).is_file():
            return streams_in(folder)
    if (job := job_called(run, {folder.path.name: folder.title() for folder in all_jobs()})) is not None:
        if streams := streams_in(home() / "jobs" / job):
            return streams
        raise EventStreamError(f"job {job} has recorded nothing yet: its script has made no Trainer")
    known = sorted(folder.name for folder in (home() / "jobs").glob("*") if (folder / STREAM).is_file())
    newest = f" The newest jobs: {', '.join(known[-5:])}." if known else ""
    raise EventStreamError(f"there is no run {run!r}: neither a file, nor a folder, nor a job in {home()}.{newest}")


def print_verdict(verdict: Verdict) -> None:
    console = screen(highlight=False, soft_wrap=True)
    console.print(verdict.summary, style="bold green" if verdict.equal else "bold red")
    for fact in verdict.facts:
        console.print(f"  the runs' facts differ: {fact}")
    if verdict.facts and not verdict.equal:
        console.print("  Runs whose facts differ may well differ in their bits: make these equal first.")
