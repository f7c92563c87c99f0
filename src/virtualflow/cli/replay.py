"""``vf replay``: a step of any run, again, on any devices, compared with the run's certificate."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from virtualflow.cli.files import check_folder
from virtualflow.cli.jobs import JobArgument
from virtualflow.cli.options import devices_of
from virtualflow.cli.screen import print_line, screen
from virtualflow.cli.verify import print_verdict
from virtualflow.core.wording import counted
from virtualflow.errors import LaunchError
from virtualflow.job.folder import JobFolder
from virtualflow.replaying.step_replay import InterruptedReplay, RecordedRun, Replay, Replayed, ShowProgress, replayed


def replay(
    job: JobArgument,
    step: Annotated[int, typer.Option(help="The step, as `vf verify` and the event stream count: from 0 on.", min=0)],
    devices: Annotated[str, typer.Option(help="The number of devices to replay it on.", metavar="N")] = "1",
    node: Annotated[
        int | None, typer.Option(help="Show the inputs and the results of this virtual node.", min=0, metavar="N")
    ] = None,
    dump: Annotated[
        Path | None,
        typer.Option(
            help="A folder for the inputs, loss and gradients of that virtual node, or of all without --node.",
            metavar="DIR",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run a step of a job again, on any devices, and compare it with the job's record of it.

    It starts from the job's last checkpoint before the step, runs the job's own copy of the program, and does not
    change the job. Exit code 0 means equal, 1 means not.
    """
    if dump is not None:
        check_folder(dump, "--dump")
        if dump.is_dir() and any(dump.iterdir()):
            raise LaunchError(f"--dump {dump} is not empty. Choose a new or an empty folder.")
    run = RecordedRun.of(JobFolder.of(job))
    _check_node(run, step, node)
    names = devices_of(devices, None, None, None).names
    wanted = Replay(run.folder, step, names, notes=node is not None or dump is not None, tensors=dump is not None)
    try:
        with showing(quiet=as_json) as show, replayed(run, wanted, show) as (found, tensors):
            files = _dump(tensors, dump, node) if dump is not None else []
    except InterruptedReplay as interruption:
        raise typer.Exit(interruption.code) from None
    facts = _facts(run, wanted, found, node, files)
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        _print(facts, found)
    raise typer.Exit(0 if found.verdict.equal else 1)


@contextmanager
def showing(*, quiet: bool) -> Iterator[ShowProgress]:
    """Show on a terminal how far a replay is."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    with screen(stderr=True).status("replaying") as status:
        yield lambda text: status.update(f"replaying {text}")


def _check_node(run: RecordedRun, step: int, node: int | None) -> None:
    sizes = run.certificate.facts.get("node_sizes") or ()
    if node is not None and sizes and node >= len(sizes):
        raise LaunchError(
            f"job {run.folder.path.name} has {len(sizes)} virtual nodes, 0 to {len(sizes) - 1}: --node {node} is none"
        )


def _dump(tensors: Path, dump: Path, node: int | None) -> list[str]:
    """Copy the tensors of *node*, or of all, into *dump*; return the files."""
    dump.mkdir(parents=True, exist_ok=True)
    wanted = "node-*.pt" if node is None else f"node-{node:05d}.pt"
    return [str(shutil.copy(file, dump)) for file in sorted(tensors.glob(wanted))]


def _facts(run: RecordedRun, wanted: Replay, found: Replayed, node: int | None, files: list[str]) -> dict[str, Any]:
    recorded, again = run.certificate.steps[wanted.step], found.certificate.steps.get(wanted.step)
    return {
        "job": run.folder.path.name,
        "step": wanted.step,
        "start": found.start,
        "first_step": found.first_step,
        "devices": list(wanted.devices),
        "equal": found.verdict.equal,
        "summary": found.verdict.summary,
        "steps_compared": found.verdict.steps_compared,
        "first_difference": found.verdict.step,
        "facts": list(found.verdict.facts),
        "recorded": asdict(recorded),
        "replayed": asdict(again) if again is not None else None,
        "nodes": [note for note in found.nodes if node in (None, note["node"])],
        "files": files,
    }


def _print(facts: dict[str, Any], found: Replayed) -> None:
    count, recorded = len(facts["devices"]), facts["recorded"]
    print_line(f"job {facts['job']}: step {facts['step']} again, on {counted(count, 'device')}, from {facts['start']}")
    print_verdict(found.verdict)
    norm = f", gradient norm {float.fromhex(recorded['norm_bits'])!r}" if recorded["norm_bits"] else ""
    print_line(f"  recorded: loss {recorded['loss']!r}{norm}, {recorded['examples']} examples, {recorded['chain']}")
    for note in facts["nodes"] if not facts["files"] or len(facts["nodes"]) == 1 else ():
        _print_note(note)
    for file in facts["files"]:
        print_line(f"wrote {file}")


def _print_note(note: dict[str, Any]) -> None:
    print_line(f"virtual node {note['node']}, on device {note['device']}: {len(note['indices'])} examples")
    print_line(f"  loss {note['loss']!r} with weight {note['weight']:g}")
    console = screen(highlight=False, soft_wrap=True)
    for title, named in (("inputs", note["inputs"]), ("gradients", note["gradients"])):
        console.print(f"  {title}:")
        for name, digest in named.items():
            console.print(f"    {name}: {digest}", markup=False)
