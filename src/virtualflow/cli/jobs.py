"""``vf status``, ``resize``, ``logs``, ``stop`` and ``clean``: one job, wherever it runs on this machine."""

from __future__ import annotations

import json
import shutil
import sys
import time
from typing import Annotated, Any

import typer
from rich import box
from rich.live import Live
from rich.table import Column, Table

from virtualflow.cli.resuming import can_go_on, how_to_go_on
from virtualflow.cli.screen import say, screen
from virtualflow.core.devices import is_number
from virtualflow.errors import ConfigError, DamagedError, EventStreamError, LaunchError
from virtualflow.events import STREAM, Regrouped, StepDone, read_events
from virtualflow.job import control
from virtualflow.job.checkpoints import step_of
from virtualflow.job.folder import ENDED, JobFolder, all_jobs
from virtualflow.job.output import LEAD_LOG
from virtualflow.manager.client import Client

JobArgument = Annotated[str, typer.Argument(help="The job's id, as `vf run` printed it.", metavar="JOB")]
WAIT_SECONDS = 300.0


def status(
    job: Annotated[str | None, typer.Argument(help="The job's id; all jobs without it.", metavar="JOB")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Keep the table up to date until Ctrl-C.")] = False,
) -> None:
    """Show the state of a job, or of all jobs."""
    if as_json:
        described = describe(JobFolder.of(job)) if job else [describe(folder) for folder in all_jobs()]
        print(json.dumps(described, indent=2))
        return
    folders = [JobFolder.of(job)] if job else all_jobs()
    if not watch:
        screen().print(_table(folders))
        if job:
            _print_more(folders[0])
        return
    try:
        with Live(_table(folders), console=screen(), refresh_per_second=4) as live:
            while True:
                time.sleep(0.5)
                live.update(_table(folders if job else all_jobs()))
    except KeyboardInterrupt:
        return


def resize(
    job: JobArgument,
    devices: Annotated[str, typer.Argument(help="The number of devices from now on; auto: the manager decides.")],
    wait: Annotated[bool, typer.Option("--wait", help="Return when the job runs on them.")] = False,
) -> None:
    """Change the number of devices of a running job. The last request wins.

    Under a manager this is the most that it may have, until `vf resize JOB auto`.
    """
    if devices != "auto" and not (is_number(devices) and int(devices) >= 1):
        raise ConfigError(f"a job needs at least one device, not {devices}")
    if JobFolder.of(job).spec().managed:
        _cap(job, None if devices == "auto" else int(devices), wait=wait)
        return
    if devices == "auto":
        raise ConfigError(f"job {job} has no manager that could decide: say how many devices")
    folder, count = _running(job), int(devices)
    control.ask(folder, verb="resize", devices=count)
    deadline = time.monotonic() + WAIT_SECONDS
    while wait and not _has_got_to(folder, count):
        if time.monotonic() > deadline:
            raise LaunchError(f"job {job} did not get to {count} devices within {WAIT_SECONDS:.0f} s")
        time.sleep(0.05)


def _cap(job: str, devices: int | None, *, wait: bool) -> None:
    manager = Client.find()
    manager.post(f"/api/jobs/{job}/resize", devices="auto" if devices is None else devices)
    deadline = time.monotonic() + WAIT_SECONDS
    while wait and devices is not None:
        now = manager.get(f"/api/jobs/{job}")
        if len(now["devices"]) <= devices and now["state"] != "RESIZING":
            return
        if time.monotonic() > deadline:
            raise LaunchError(f"job {job} did not get to {devices} devices within {WAIT_SECONDS:.0f} s")
        time.sleep(0.1)


def _has_got_to(folder: JobFolder, devices: int) -> bool:
    job = folder.path.name
    if not folder.is_locked():
        raise LaunchError(
            f"job {job} ended before it got to {devices} devices: its state is {folder.read_state()['state']}"
        )
    state = control.ask(folder, verb="status")
    if len(state["wanted"]) != devices:
        raise LaunchError(f"job {job} is to run on {len(state['wanted'])} devices by now, not on {devices}")
    return bool(state["state"] == "RUNNING" and len(state["workers"]) == devices)


def stop(
    job: JobArgument,
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="Write a checkpoint first, for `vf run --resume`.")
    ] = False,
) -> None:
    """End a running job and all its workers."""
    folder = _running(job)
    if folder.spec().managed and (manager := Client.found()) is not None:
        manager.post(f"/api/jobs/{job}/{'pause' if checkpoint else 'cancel'}")
    else:
        control.ask(folder, verb="stop", checkpoint=checkpoint)
    deadline = time.monotonic() + WAIT_SECONDS
    while folder.is_locked():
        if time.monotonic() > deadline:
            raise LaunchError(f"job {job} has not ended within {WAIT_SECONDS:.0f} s")
        time.sleep(0.05)
    state = folder.read_state()
    if checkpoint and state["state"] == "FAILED":
        why = state.get("reason", f"`vf logs {job}` may say why")
        raise LaunchError(f"job {job} has ended, and no checkpoint was written: {why} ({how_to_go_on(folder)})")
    print(f"job {job} has ended")
    if checkpoint and can_go_on(folder, state["state"]):
        print(how_to_go_on(folder))


def logs(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the job ends.")] = False,
    device: Annotated[str | None, typer.Option(help="Show this device's output instead of the lead's.")] = None,
) -> None:
    """Print the output of a job's lead worker."""
    folder = JobFolder.of(job)
    path = folder.path / "logs" / (f"{device}.log" if device is not None else LEAD_LOG)
    position = 0
    try:
        while True:
            ended = folder.read_state()["state"] in ENDED
            if path.exists():
                with path.open("rb") as file:
                    file.seek(position)
                    sys.stdout.write(file.read().decode(errors="replace"))
                    sys.stdout.flush()
                    position = file.tell()
            if not follow or ended:
                return
            time.sleep(0.2)
    except KeyboardInterrupt:
        return


def clean(
    job: Annotated[str | None, typer.Argument(help="One job; without it, all that have ended.", metavar="JOB")] = None,
) -> None:
    """Remove the folders of jobs that have ended."""
    folders = [JobFolder.of(job)] if job else all_jobs()
    for folder in folders:
        runs, last = folder.is_locked(), folder.read_state()
        state = last["state"]
        if runs or state not in ENDED or (_may_go_on(folder, last) and not job):
            if job:
                told = f"is running; `vf stop {job}` ends it" if runs else f"has not ended: its state is {state}"
                raise LaunchError(f"job {job} {told}")
            continue
        shutil.rmtree(folder.path)
        print(f"removed job {folder.path.name}")


def _may_go_on(folder: JobFolder, state: dict[str, Any]) -> bool:
    """Whether it is a manager's job that is not known to be over: its coordinator may just be gone."""
    try:
        return folder.spec().managed and state["state"] != "DONE" and state.get("over") is not True
    except (OSError, DamagedError):
        return True


def describe(folder: JobFolder) -> dict[str, Any]:
    """A job as ``vf status --json`` shows it."""
    state = folder.read_state()
    described = {"id": folder.path.name, "step": 0, "loss": None, "examples_per_second": None, "virtual_nodes": None}
    described |= state
    changes = []
    try:
        for event in read_events(folder.path / STREAM) if (folder.path / STREAM).exists() else ():
            if isinstance(event, StepDone):
                described["step"] = event.step + 1
                described["loss"] = event.loss
                described["examples_per_second"] = round(event.examples / max(event.seconds, 1e-9), 1)
            elif isinstance(event, Regrouped):
                changes.append(event)
    except EventStreamError as error:  # its own damage: the other jobs are shown all the same
        described["reason"] = str(error)
    described["checkpoint_step"] = step_of(folder.latest_checkpoint())
    described["checkpoints"] = [step_of(path) for path in folder.automatic_checkpoints()]
    described["changes"] = [
        {"generation": c.generation, "step": c.step, "cause": c.cause, "devices": c.devices, "pause_ms": c.pause_ms}
        for c in changes[-5:]
    ]
    return described


def _table(folders: list[JobFolder]) -> Table:
    columns = ("devices", "nodes/device", "gen", "step", "loss", "ex/s", "resizes", "failures")
    whole = (Column("job", no_wrap=True), Column("state", no_wrap=True))
    table = Table(*whole, *columns, box=box.SIMPLE, pad_edge=False)
    for folder in folders:
        job = describe(folder)
        per_device = " ".join(f"{w['device']}:{len(w['virtual_nodes'])}" for w in job["workers"])
        loss = f"{job['loss']:.4f}" if job["loss"] is not None else ""
        cells = (job["id"], job["state"], len(job["workers"]), per_device, job["generation"], job["step"], loss)
        more = (job["examples_per_second"] or "", job.get("resizes", 0), job.get("failures", 0))
        table.add_row(*(str(cell) for cell in (*cells, *more)))
    return table


def _print_more(folder: JobFolder) -> None:
    job = describe(folder)
    if "reason" in job:
        say(job["reason"])
    if can_go_on(folder, job["state"]):
        print(how_to_go_on(folder))
        if earlier := job["checkpoints"][:-1]:
            print(f"  --from-checkpoint {' or '.join(map(str, reversed(earlier)))} chooses an earlier one")
    for change in job["changes"]:
        pause = ", ".join(f"{name} {ms:.0f} ms" for name, ms in change["pause_ms"].items())
        say(f"generation {change['generation']} at step {change['step']} ({change['cause']}): "
              f"devices {' '.join(change['devices'])}; {pause}")  # fmt: skip


def _running(job: str) -> JobFolder:
    folder = JobFolder.of(job)
    if not folder.is_locked():
        state = folder.read_state()["state"]
        raise LaunchError(f"job {job} is not running: its state is {state}")
    return folder
