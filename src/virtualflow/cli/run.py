"""``vf run``: a script on any number of devices."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from virtualflow.cli.foreground import in_the_background, in_the_foreground
from virtualflow.cli.options import (
    AsModule,
    CheckpointEvery,
    DeviceFile,
    DeviceType,
    Emulate,
    Include,
    Listen,
    Name,
    Preload,
    Profiles,
    TimeScale,
    TokenFile,
    device_type_of,
    preload_of,
    program_of,
    warn_left_out,
)
from virtualflow.cli.resuming import where_it_goes_on
from virtualflow.cli.run_settings import DeviceOptions, RunSettings
from virtualflow.core.job_state import JobState
from virtualflow.errors import LaunchError
from virtualflow.job import checkpoints, control, launch
from virtualflow.job.folder import JobFolder, JobSpec
from virtualflow.system.home import home, new_job_id

PART_OF_THE_JOB = {
    "script": "the script",
    "arguments": "the arguments",
    "threads_per_device": "--threads-per-device",
    "device_type": "--device-type",
    "module": "-m",
    "audit": "--audit",
    "plan": "--plan",
    "include": "--include",
}


def run(
    context: typer.Context,
    script: Annotated[Path | None, typer.Argument(help="The training script.", metavar="SCRIPT")] = None,
    arguments: Annotated[list[str] | None, typer.Argument(help="Its own arguments.", metavar="ARGS")] = None,
    module: AsModule = False,
    name: Name = "",
    devices: Annotated[
        str,
        typer.Option(help="The number of devices, up to the virtual nodes; or types: V100:2,P100:8.", metavar="N|LIST"),
    ] = "1",
    backend: Annotated[
        str,
        typer.Option(
            help="Where workers run: local is this machine, ray the Ray cluster that it belongs to or RAY_ADDRESS "
            "names. Device types are then the cluster's GPU models and custom resources.",
            metavar="local|ray",
        ),
    ] = "local",
    plan: Annotated[
        Path | None, typer.Option(help="A plan of `vf solve -o`: devices, node sizes and mapping.", metavar="FILE")
    ] = None,
    profiles: Profiles = None,
    rebalance: Annotated[
        bool | None,
        typer.Option(
            "--rebalance/--no-rebalance", help="Move virtual nodes away from slow devices; on for mixed types."
        ),
    ] = None,
    device_file: DeviceFile = None,
    emulate: Emulate = None,
    time_scale: TimeScale = None,
    resume: Annotated[str | None, typer.Option(help="Continue a job from its last checkpoint.", metavar="JOB")] = None,
    from_checkpoint: Annotated[
        str | None,
        typer.Option(
            help="Continue from this checkpoint instead of the last one: a file, or with --resume a step of the job.",
            metavar="FILE|STEP",
        ),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace/--no-replace", help="Replace lost workers.")] = True,
    checkpoint_every: CheckpointEvery = 500,
    include: Include = None,
    preload: Preload = None,
    listen: Listen = None,
    token_file: TokenFile = None,
    audit: Annotated[
        bool, typer.Option("--audit", help="Run every virtual node twice, in another order, and compare bits.")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Run in the background; `vf status` shows it.")] = False,
    all_output: Annotated[
        bool, typer.Option("--all-output", help="Show the output of every worker, with its device's name.")
    ] = False,
    progress: Annotated[
        bool | None, typer.Option("--progress/--no-progress", help="A progress bar; on by default on a terminal.")
    ] = None,
    dashboard: Annotated[bool, typer.Option("--dashboard", help="Show the job in a browser while it runs.")] = False,
    mapping: Annotated[
        str | None,
        typer.Option(
            help="The device index of each virtual node, such as 0,1,1,0; with stages a row for each: 0,0/1,1.",
            metavar="LIST",
        ),
    ] = None,
    threads_per_device: Annotated[
        int, typer.Option(help="Threads of a CPU device. The bits depend on it.", min=1, metavar="N")
    ] = 1,
    device_type: DeviceType = "auto",
    patience: Annotated[
        float,
        typer.Option(
            help="Seconds after which a worker that blocks the others counts as lost.", min=1, metavar="SECONDS"
        ),
    ] = 30.0,
) -> None:
    """Run SCRIPT on several devices. The exit code is the script's.

    Each device gets a process that runs the script; what it trains is the same, bit for bit, on any number of devices.
    """
    file, full_name = program_of(script, as_module=module) if script is not None else (None, "")
    settings = RunSettings.read(
        DeviceOptions(devices, plan, device_file, emulate, time_scale),
        file,
        profiles,
        backend=backend,
        rebalance=rebalance,
        mapping=mapping,
        patience=patience,
        replace=replace,
        listen=listen,
        token_file=token_file,
        name=name,
        checkpoint_every=checkpoint_every,
        preload=preload_of(preload),
    )
    if dashboard and detach:
        raise LaunchError("--dashboard needs the job in the foreground; `vf cluster up` has a page that stays")
    if resume is not None:
        given = _given(context, resume)
        folder, checkpoint = _to_resume(resume, settings.given(given), from_checkpoint)
    elif file is None:
        raise LaunchError("which script? `vf run --devices 2 train.py`, or `vf run --resume JOB`")
    else:
        checkpoint = checkpoints.checked(Path(from_checkpoint)) if from_checkpoint is not None else None
        job = JobSpec.of(
            job_id=new_job_id(),
            script=str(file),
            arguments=tuple(arguments or ()),
            threads_per_device=threads_per_device,
            device_type=device_type_of(device_type, devices),
            audit=audit,
            node_sizes=settings.node_sizes,
            from_checkpoint=str(checkpoint) if checkpoint else None,
            **settings.all(),
        )
        folder = JobFolder(home() / "jobs" / job.job_id)
        warn_left_out(folder.create(job, include or (), full_name))
    token = launch.prepare(folder, checkpoint)
    print(f"job {folder.path.name}", flush=True)
    if resume is not None or checkpoint is not None:
        _print_aside(where_it_goes_on(folder, checkpoint))
    if detach:
        in_the_background(folder, token)
        return
    outcome = in_the_foreground(folder, token, all_output=all_output, progress=progress, dashboard=dashboard)
    if audit and outcome.code == 0:
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
