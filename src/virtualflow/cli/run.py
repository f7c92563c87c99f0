"""``vf run``: a script on any number of devices."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from virtualflow.cli.options import device_names, numbers
from virtualflow.cli.progress import Progress
from virtualflow.core.membership import home, new_job_id
from virtualflow.errors import LaunchError
from virtualflow.events import STREAM
from virtualflow.runtime.coordinator import Coordinator, JobSpec, Outcome
from virtualflow.runtime.interrupts import Interrupted, interruptible
from virtualflow.runtime.local import LocalBackend
from virtualflow.runtime.output import AllOutput, LeadOutput


def run(
    script: Annotated[Path, typer.Argument(help="The training script.", metavar="SCRIPT")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its own arguments.", metavar="ARGS")] = None,
    devices: Annotated[
        str, typer.Option(help="How many devices: up to the number of virtual nodes.", metavar="N")
    ] = "1",
    audit: Annotated[
        bool, typer.Option("--audit", help="Run every virtual node twice, in another order, and compare bits.")
    ] = False,
    all_output: Annotated[
        bool, typer.Option("--all-output", help="Show what every worker prints, behind its device's name.")
    ] = False,
    progress: Annotated[
        bool | None, typer.Option("--progress/--no-progress", help="A progress bar; on by default on a terminal.")
    ] = None,
    mapping: Annotated[
        str | None, typer.Option(help="A device's index for each virtual node, such as 0,1,1,0.", metavar="LIST")
    ] = None,
    threads_per_device: Annotated[int, typer.Option(help="Threads of a CPU device. Part of the job.", min=1)] = 1,
    device_type: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    patience: Annotated[
        float, typer.Option(help="Seconds that workers wait for a late one before they give up.", min=1)
    ] = 30.0,
    port: Annotated[int, typer.Option(help="The port where workers meet; 0 takes a free one.", min=0, max=65535)] = 0,
) -> None:
    """Run SCRIPT on several devices. The exit code is the script's.

    Each device gets a process that runs the script; what it trains is the same, bit by bit, for any number of devices.
    """
    if not script.is_file():
        raise LaunchError(f"there is no script {script}. Give a path relative to this folder, or a full one.")
    job_id = new_job_id()
    job = JobSpec(
        job_id=job_id,
        folder=home() / "jobs" / job_id,
        script=str(script),
        arguments=tuple(arguments or ()),
        devices=device_names(devices),
        owners=tuple(numbers(mapping, "--mapping")) if mapping else None,
        port=port,
        patience_seconds=patience,
        threads_per_device=threads_per_device,
        device_type=_device_type(device_type),
        audit=audit,
    )
    print(f"job {job_id}", flush=True)
    show = sys.stdout.isatty() if progress is None else progress
    outcome = _run(job, all_output=all_output, show=show and not all_output)
    _explain_failure(outcome, job)
    if audit and outcome.code == 0:
        print("audit: no hidden state found", file=sys.stderr)
    raise typer.Exit(outcome.code)


def _run(job: JobSpec, *, all_output: bool, show: bool) -> Outcome:
    workers = len(job.devices)
    try:
        with interruptible(), LocalBackend(threads_per_device=job.threads_per_device) as backend:
            if all_output:
                sink = AllOutput()
                try:
                    return Coordinator(job, backend, sink).run()
                finally:
                    sink.close()
            if not show:
                return Coordinator(job, backend, LeadOutput(job.devices[0])).run()
            with Progress(job.folder / STREAM, job.devices[0]) as bar:
                return Coordinator(job, backend, bar, bar.refresh).run()
    except Interrupted as interruption:
        print(f"\ninterrupted: all {workers} worker(s) have ended", file=sys.stderr)
        return Outcome(128 + interruption.signal_number)


def _explain_failure(outcome: Outcome, job: JobSpec) -> None:
    if outcome.failure is None or not outcome.failure.text:
        return
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if len(job.devices) > 1:
        console.print(f"[bold red]failed on device {outcome.failure.device}:[/]")
    console.print(outcome.failure.text.rstrip(), markup=False)


def _device_type(text: str) -> str:
    if text not in ("auto", "cpu", "cuda"):
        raise LaunchError(f"--device-type {text}: expected auto, cpu or cuda")
    return text
