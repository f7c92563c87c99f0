"""``vf run``: a script on any number of devices."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from virtualflow.cli.foreground import in_the_background, in_the_foreground
from virtualflow.cli.job_options import RunOptions
from virtualflow.cli.option_groups import with_groups
from virtualflow.cli.options import AsModule, DeviceType, Include, device_type_of, program_of, warn_left_out
from virtualflow.cli.resuming import where_it_goes_on
from virtualflow.cli.run_settings import DeviceOptions, LaunchOptions, RunSettings
from virtualflow.core.job_state import JobState
from virtualflow.errors import LaunchError
from virtualflow.job import checkpoints, control, launch
from virtualflow.job.folder import JobFolder, JobSpec
from virtualflow.system.home import home, new_job_id


@dataclass(frozen=True, slots=True)
class FixedOptions:
    """Of the description, too, and part of what the job is: they can't be changed when it is resumed."""

    audit: Annotated[
        bool, typer.Option("--audit", help="Run every virtual node twice, in another order, and compare bits.")
    ] = False
    threads_per_device: Annotated[
        int, typer.Option(help="Threads of a CPU device. The bits depend on it.", min=1, metavar="N")
    ] = 1
    device_type: DeviceType = "auto"

    def described(self, devices: str) -> dict[str, Any]:
        """The description's fields, for a job on *devices*."""
        return asdict(self) | {"device_type": device_type_of(self.device_type, devices)}


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Where the job runs for its owner, and what of it is shown."""

    detach: Annotated[bool, typer.Option("--detach", help="Run in the background; `vf status` shows it.")] = False
    all_output: Annotated[
        bool, typer.Option("--all-output", help="Show the output of every worker, with its device's name.")
    ] = False
    progress: Annotated[
        bool | None, typer.Option("--progress/--no-progress", help="A progress bar; on by default on a terminal.")
    ] = None
    dashboard: Annotated[bool, typer.Option("--dashboard", help="Show the job in a browser while it runs.")] = False

    def check(self) -> None:
        if self.dashboard and self.detach:
            raise LaunchError("--dashboard needs the job in the foreground; `vf cluster up` has a page that stays")


PART_OF_THE_JOB = {
    "script": "the script",
    "arguments": "the arguments",
    "module": "-m",
    "plan": "--plan",
    "include": "--include",
} | {field.name: f"--{field.name.replace('_', '-')}" for field in fields(FixedOptions)}


@with_groups
def run(
    context: typer.Context,
    script: Annotated[Path | None, typer.Argument(help="The training script.", metavar="SCRIPT")] = None,
    arguments: Annotated[list[str] | None, typer.Argument(help="Its own arguments.", metavar="ARGS")] = None,
    module: AsModule = False,
    *,
    where: DeviceOptions,
    fixed: FixedOptions,
    described: RunOptions,
    started: LaunchOptions,
    shown: OutputOptions,
    resume: Annotated[str | None, typer.Option(help="Continue a job from its last checkpoint.", metavar="JOB")] = None,
    from_checkpoint: Annotated[
        str | None,
        typer.Option(
            help="Continue from this checkpoint instead of the last one: a file, or with --resume a step of the job.",
            metavar="FILE|STEP",
        ),
    ] = None,
    include: Include = None,
) -> None:
    """Run SCRIPT on several devices. The exit code is the script's.

    Each device gets a process that runs the script; what it trains is the same, bit for bit, on any number of devices.
    """
    file, full_name = program_of(script, as_module=module) if script is not None else (None, "")
    settings = RunSettings.read(described, where, started, file)
    shown.check()
    if resume is not None:
        folder, checkpoint = _to_resume(resume, settings.given(_given(context, resume)), from_checkpoint)
    elif file is None:
        raise LaunchError("which script? `vf run --devices 2 train.py`, or `vf run --resume JOB`")
    else:
        checkpoint = checkpoints.checked(Path(from_checkpoint)) if from_checkpoint is not None else None
        job = JobSpec.of(
            job_id=new_job_id(),
            script=str(file),
            arguments=tuple(arguments or ()),
            node_sizes=settings.node_sizes,
            from_checkpoint=str(checkpoint) if checkpoint else None,
            **fixed.described(where.devices),
            **settings.all(),
        )
        folder = JobFolder(home() / "jobs" / job.job_id)
        warn_left_out(folder.create(job, include or (), full_name))
    token = launch.prepare(folder, checkpoint)
    print(f"job {folder.path.name}", flush=True)
    if resume is not None or checkpoint is not None:
        _print_aside(where_it_goes_on(folder, checkpoint))
    if shown.detach:
        in_the_background(folder, token)
        return
    outcome = in_the_foreground(
        folder, token, all_output=shown.all_output, progress=shown.progress, dashboard=shown.dashboard
    )
    if fixed.audit and outcome.code == 0:
        _print_aside("audit: no hidden state found")
    raise typer.Exit(outcome.code)


def _given(context: typer.Context, job_id: str) -> set[str]:
    """The options on the command line. Raises LaunchError if one would change what the job is."""
    given = {name for name in context.params if _is_given(context, name)}
    if fixed := given & PART_OF_THE_JOB.keys():
        raise LaunchError(f"{PART_OF_THE_JOB[min(fixed)]} of job {job_id} stays as it was: leave it out of --resume")
    return given


def _to_resume(job_id: str, changed: dict[str, Any], choice: str | None) -> tuple[JobFolder, Path | None]:
    folder = JobFolder.of(job_id)
    if folder.spec().managed:
        raise LaunchError(f"job {job_id} is the manager's: `vf resume {job_id}` continues a paused one")
    deadline = time.monotonic() + 2 * folder.spec().patience_seconds  # its workers may still write a checkpoint
    while folder.is_locked():
        if control.answers(folder) or time.monotonic() > deadline:
            raise LaunchError(f"job {job_id} is running; `vf status {job_id}` shows it{_what_runs(folder)}")
        time.sleep(0.05)
    if folder.read_state().state == JobState.DONE:
        raise LaunchError(f"job {job_id} is done: its script has run to its end, so it can't be resumed")
    folder.change(folder.spec().changed(**changed))
    with folder.locked():
        if choice is None:
            return folder, checkpoints.whole(folder, folder.latest_checkpoint(), _print_aside)
        checkpoint = checkpoints.chosen(folder, choice)
        for path in checkpoints.set_newer_aside(folder, checkpoint):
            _print_aside(f"set aside: {path}")
        if checkpoint.parent != folder.checkpoints:
            folder.change(folder.spec().changed(from_checkpoint=str(checkpoint)))
        return folder, checkpoint


def _what_runs(folder: JobFolder) -> str:
    """Workers whose coordinator is gone finish what they are at."""
    return "" if control.answers(folder) else ". Its coordinator is gone, and a worker still finishes its step: wait"


def _print_aside(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
