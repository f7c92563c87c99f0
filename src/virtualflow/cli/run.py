"""``vf run``: a script on any number of devices."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from virtualflow.cli.dashboard import of_one_job
from virtualflow.cli.options import (
    DeviceFile,
    DeviceType,
    Emulate,
    Include,
    Listen,
    Profiles,
    TimeScale,
    TokenFile,
    device_type_of,
    devices_in,
    devices_of,
    numbers,
    profiles_of,
    tell_left_out,
    token_file_for,
    workload_for,
)
from virtualflow.cli.progress import Progress
from virtualflow.cli.resuming import how_to_go_on, where_it_goes_on
from virtualflow.cli.screen import screen
from virtualflow.core import profile
from virtualflow.core.devices import Pool, type_of
from virtualflow.core.emulation import Devices
from virtualflow.errors import LaunchError
from virtualflow.events import STREAM
from virtualflow.job import checkpoints, control, launch
from virtualflow.job.coordinator import Outcome
from virtualflow.job.folder import JobFolder, JobSpec
from virtualflow.job.output import AllOutput, LeadOutput
from virtualflow.job.serve import run_job
from virtualflow.solver import plan as plans
from virtualflow.solver.plan import Layout
from virtualflow.system.home import home, new_job_id

DETACH_SECONDS = 60.0
PART_OF_THE_JOB = {
    "script": "the script",
    "arguments": "the arguments",
    "threads_per_device": "--threads-per-device",
    "device_type": "--device-type",
    "audit": "--audit",
    "plan": "--plan",
    "include": "--include",
}


def run(
    context: typer.Context,
    script: Annotated[Path | None, typer.Argument(help="The training script.", metavar="SCRIPT")] = None,
    arguments: Annotated[list[str] | None, typer.Argument(help="Its own arguments.", metavar="ARGS")] = None,
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
    detach: Annotated[bool, typer.Option("--detach", help="Run in the background; `vf status` shows it.")] = False,
    resume: Annotated[str | None, typer.Option(help="Continue a job from its last checkpoint.", metavar="JOB")] = None,
    from_checkpoint: Annotated[
        str | None,
        typer.Option(
            help="Continue from this checkpoint instead of the last one: a file, or with --resume a step of the job.",
            metavar="FILE|STEP",
        ),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace/--no-replace", help="Replace lost workers.")] = True,
    checkpoint_every: Annotated[
        int, typer.Option(help="Steps between automatic checkpoints; 0 for none.", min=0)
    ] = 500,
    include: Include = None,
    listen: Listen = None,
    token_file: TokenFile = None,
    audit: Annotated[
        bool, typer.Option("--audit", help="Run every virtual node twice, in another order, and compare bits.")
    ] = False,
    all_output: Annotated[
        bool, typer.Option("--all-output", help="Show the output of every worker, with its device's name.")
    ] = False,
    progress: Annotated[
        bool | None, typer.Option("--progress/--no-progress", help="A progress bar; on by default on a terminal.")
    ] = None,
    dashboard: Annotated[bool, typer.Option("--dashboard", help="Show the job in a browser while it runs.")] = False,
    mapping: Annotated[
        str | None, typer.Option(help="The device index of each virtual node, such as 0,1,1,0.", metavar="LIST")
    ] = None,
    threads_per_device: Annotated[int, typer.Option(help="Threads of a CPU device. The bits depend on it.", min=1)] = 1,
    device_type: DeviceType = "auto",
    patience: Annotated[
        float, typer.Option(help="Seconds after which a worker that blocks the others counts as lost.", min=1)
    ] = 30.0,
) -> None:
    """Run SCRIPT on several devices. The exit code is the script's.

    Each device gets a process that runs the script; what it trains is the same, bit by bit, for any number of devices.
    """
    # How the job runs, by option: this may differ when it is resumed.
    planned = plans.layout(plans.read(plan)) if plan is not None else None
    there = _devices(devices, planned, device_file, emulate, time_scale)
    owners = tuple(numbers(mapping, "--mapping")) if mapping else planned.owners if planned else None
    ways: dict[str, dict[str, Any]] = {
        "devices": {"devices": there.names, "emulated": there.emulated} | _speeds(script, profiles, there, owners),
        "backend": {"backend": _backend(backend)},
        "rebalance": {"rebalance": there.are_mixed if rebalance is None else rebalance},
        "mapping": {"owners": owners},
        "patience": {"patience_seconds": patience},
        "replace": {"replace_lost": replace},
        "checkpoint_every": {"checkpoint_every": checkpoint_every},
        "listen": {"listen": listen, "token_file": str(token_file_for(listen, token_file)) if listen else None},
    }
    if resume is not None:
        given = {name for name in context.params if _is_given(context, name)}
        if given & PART_OF_THE_JOB.keys():
            name = min(given & PART_OF_THE_JOB.keys())
            raise LaunchError(f"{PART_OF_THE_JOB[name]} of job {resume} stays as it was: leave it out of --resume")
        told = {field: value for name in given & ways.keys() for field, value in ways[name].items()}
        if "devices" in told:
            told.setdefault("owners", None)
        folder, checkpoint = _to_resume(resume, told, from_checkpoint)
    else:
        checkpoint = checkpoints.checked(Path(from_checkpoint)) if from_checkpoint is not None else None
        job = JobSpec(
            job_id=new_job_id(),
            script=str(_existing(script)),
            arguments=tuple(arguments or ()),
            threads_per_device=threads_per_device,
            device_type=device_type_of(device_type),
            audit=audit,
            node_sizes=planned.node_sizes if planned else None,
            from_checkpoint=str(checkpoint) if checkpoint else None,
            **{field: value for fields in ways.values() for field, value in fields.items()},
        )
        folder = JobFolder(home() / "jobs" / job.job_id)
        tell_left_out(folder.create(job, include or ()))
    if dashboard and detach:
        raise LaunchError("--dashboard needs the job in the foreground; `vf cluster up` has a page that stays")
    token = launch.prepare(folder, checkpoint)
    print(f"job {folder.path.name}", flush=True)
    if resume is not None or checkpoint is not None:
        print(where_it_goes_on(folder, checkpoint), file=sys.stderr, flush=True)
    if detach:
        _detach(folder, token)
        return
    show = (sys.stdout.isatty() if progress is None else progress) and not all_output
    with of_one_job(folder) if dashboard else nullcontext():
        outcome = _in_the_foreground(folder, token, all_output=all_output, show=show)
    with suppress(OSError):  # the terminal may be closed by now
        _explain_failure(outcome)
        if outcome.was_interrupted:
            print(f"\ninterrupted: all workers have ended. {how_to_go_on(folder)}.", file=sys.stderr, flush=True)
    if audit and outcome.code == 0:
        print("audit: no hidden state found", file=sys.stderr)
    raise typer.Exit(outcome.code)


def _in_the_foreground(folder: JobFolder, token: str, *, all_output: bool, show: bool) -> Outcome:
    with ExitStack() as owned:
        if show:
            bar = owned.enter_context(Progress(folder.path / STREAM))
            return run_job(folder, bar, bar.refresh, token=token)
        return run_job(folder, AllOutput() if all_output else LeadOutput(), token=token)


def _detach(folder: JobFolder, token: str) -> None:
    process = launch.start(folder, token)
    deadline = time.monotonic() + DETACH_SECONDS
    while not folder.control.exists() and time.monotonic() < deadline:
        if process.poll() == 0:
            return  # a short job
        if process.poll() is not None:
            raise LaunchError(f"the job ended at once: {(folder.path / launch.LOG).read_text()[-2000:]}")
        time.sleep(0.05)


def _to_resume(job_id: str, told: dict[str, Any], choice: str | None) -> tuple[JobFolder, Path | None]:
    folder = JobFolder.of(job_id)
    if folder.spec().managed:
        raise LaunchError(f"job {job_id} is the manager's: `vf resume {job_id}` lets a paused one go on")
    deadline = time.monotonic() + 2 * folder.spec().patience_seconds  # its workers may still write a checkpoint
    while folder.is_locked():
        if control.answers(folder) or time.monotonic() > deadline:
            raise LaunchError(f"job {job_id} is running; `vf status {job_id}` shows it{_what_runs(folder)}")
        time.sleep(0.05)
    if folder.read_state()["state"] == "DONE":
        raise LaunchError(f"job {job_id} has ended; there is nothing left to do")
    folder.change(dataclasses.replace(folder.spec(), **told))
    with folder.locked():
        if choice is None:
            return folder, checkpoints.whole(folder, folder.latest_checkpoint(), _tell)
        checkpoint = checkpoints.chosen(folder, choice)
        for path in checkpoints.set_newer_aside(folder, checkpoint):
            _tell(f"set aside: {path}")
        if checkpoint.parent != folder.checkpoints:
            folder.change(dataclasses.replace(folder.spec(), from_checkpoint=str(checkpoint)))
        return folder, checkpoint


def _what_runs(folder: JobFolder) -> str:
    """Workers whose coordinator is gone finish what they are at."""
    return "" if control.answers(folder) else ". Its coordinator is gone, and a worker still finishes its step: wait"


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _devices(text: str, planned: Layout | None, file: Path | None, emulate: str | None, scale: float | None) -> Devices:
    if planned is None:
        return devices_of(text, file, emulate, scale)
    counts = Counter(type_of(name) for name in planned.devices)
    return devices_in([Pool(name, (count,)) for name, count in counts.items()], file, emulate, scale)


def _speeds(script: Path | None, folder: Path | None, there: Devices, owners: Sequence[int] | None) -> dict[str, Any]:
    """The profiles by which the job's virtual nodes are mapped: needed if its devices are not all alike."""
    if script is None or (not there.are_mixed and folder is None):
        return {"workload": None}
    if owners is not None and folder is None and not profiles_of(str(script)).is_dir():
        return {"workload": None}  # mapped by hand, or by a plan
    known = workload_for(str(script), folder, there.names)
    return {"workload": profile.to_json(known) if known is not None else None}


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _existing(script: Path | None) -> Path:
    if script is None:
        raise LaunchError("which script? `vf run --devices 2 train.py`, or `vf run --resume JOB`")
    if not script.is_file():
        raise LaunchError(f"there is no script {script}. Give a path relative to this folder, or a full one.")
    return script


def _explain_failure(outcome: Outcome) -> None:
    if outcome.failure is None or not outcome.failure.text:
        return
    console = screen(stderr=True, highlight=False, soft_wrap=True)
    if outcome.failure.device:
        console.print(f"failed on device {outcome.failure.device}:", style="bold red")
    console.print(outcome.failure.text.rstrip())


def _backend(text: str) -> str:
    if text not in ("local", "ray"):
        raise LaunchError(f"--backend {text}: expected local or ray")
    if text == "ray":
        from virtualflow.backends import ray  # noqa: F401  (says so at once if it is not installed)
    return text
