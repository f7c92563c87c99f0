"""``vf status``, ``resize`` and ``stop``: one job, on this machine or at ``$VF_CLUSTER``."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live

from virtualflow.cli.cell_table import colours_of, print_grid
from virtualflow.cli.job_table import console, event_lines, fact_table, job_table, speed_table, views_of
from virtualflow.cli.resuming import can_go_on, how_to_go_on
from virtualflow.cli.screen import print_line
from virtualflow.core.cells import Cells
from virtualflow.core.devices import is_number
from virtualflow.core.job_state import ENDED, JobState
from virtualflow.core.wording import counted
from virtualflow.errors import ConfigError, LaunchError
from virtualflow.job import control
from virtualflow.job.checkpoints import step_of
from virtualflow.job.folder import JobFolder, all_jobs
from virtualflow.job.folder_view import FolderView
from virtualflow.job.wire_messages import GetStatus, ResizeJob, StopJob
from virtualflow.manager.client import Client

JobArgument = Annotated[
    str, typer.Argument(help="The job's id, as `vf run` printed it, the beginning of it, or its name.", metavar="JOB")
]
Wide = Annotated[bool, typer.Option("--wide", help="All columns, however wide that gets.")]
WAIT_SECONDS = 300.0


def status(
    job: Annotated[str | None, typer.Argument(help="The job's id or name; all jobs without it.", metavar="JOB")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Keep the table up to date until Ctrl-C.")] = False,
    wide: Wide = False,
) -> None:
    """Show the state of a job, or of all jobs."""
    if (manager := Client.remote()) is not None:
        _remote_status(manager, manager.job_id(job) if job else None, as_json=as_json, watch=watch, wide=wide)
        return
    chosen = JobFolder.of(job) if job else None
    if as_json:
        described = describe(chosen) if chosen else [describe(folder) for folder in all_jobs()]
        print(json.dumps(described, indent=2))
        return
    seen: dict[str, FolderView] = {}  # each look reads only what is new

    def table() -> Group:
        for folder in [chosen] if chosen else all_jobs():
            seen.setdefault(folder.path.name, FolderView(folder))
        now = time.time()
        return job_table(
            [folder_view.look(now)[0] for folder_view in seen.values() if folder_view.folder.path.exists()], wide=wide
        )

    if watch:
        keep_showing(table, wide=wide)
        return
    console(wide=wide).print(table())
    if chosen:
        _print_more(chosen)


def _remote_status(manager: Client, job: str | None, *, as_json: bool, watch: bool, wide: bool) -> None:
    def jobs() -> list[dict[str, Any]]:
        return [manager.get(f"/api/jobs/{job}")] if job else manager.get("/api/jobs")

    if as_json:
        print(json.dumps(jobs()[0] if job else jobs(), indent=2))
    elif watch:
        keep_showing(lambda: job_table(views_of(jobs()), wide=wide), wide=wide)
    else:
        console(wide=wide).print(job_table(views_of(jobs()), wide=wide))


def keep_showing(table: Callable[[], Group], *, wide: bool) -> None:
    """Draw the table again and again until Ctrl-C."""
    try:
        with Live(table(), console=console(wide=wide), refresh_per_second=4) as live:
            while True:
                time.sleep(0.5)
                live.update(table())
    except KeyboardInterrupt:
        return


def print_facts(facts: dict[str, Any]) -> None:
    """All there is to know of a manager's job."""
    shown = console(wide=False)
    shown.print(fact_table(facts))
    print_cells_of(facts)
    if facts["speed"] is not None:
        shown.print(speed_table(facts["speed"]))
    for line in event_lines(facts["events"][-10:]):
        shown.print(line)
    if facts["failure"]:
        shown.print(f"\n{facts['failure']}")


def print_cells_of(facts: dict[str, Any]) -> None:
    """Who runs which cell of a job with stages, and who holds a stage besides."""
    if not facts["cells"]:
        return
    cells = Cells.of_rows(facts["cells"], facts["shadows"])
    print_grid(cells.rows, colours_of(cells.devices), console(wide=False))
    for stage, shadows in enumerate(cells.shadows):
        if shadows:
            print_line(f"stage {stage} is also held by {', '.join(shadows)}")


def resize(
    job: JobArgument,
    devices: Annotated[
        str, typer.Argument(help="The number of devices from now on; auto: the manager decides.", metavar="N|auto")
    ],
    wait: Annotated[bool, typer.Option("--wait", help="Return when the job runs on them.")] = False,
) -> None:
    """Change the number of devices of a running job. The last request wins.

    Under a manager this is the most that it may have, until `vf resize JOB auto`.
    """
    if devices != "auto" and not (is_number(devices) and int(devices) >= 1):
        raise ConfigError(f"a job needs at least one device, not {devices}")
    remote = Client.remote()
    if remote is not None or JobFolder.of(job).spec().managed:
        _cap(remote or Client.find(), job, None if devices == "auto" else int(devices), wait=wait)
        return
    if devices == "auto":
        raise ConfigError(f"job {job} has no manager that could decide: give a number of devices")
    folder, count = _running(job), int(devices)
    job = folder.path.name
    before = len(control.ask(folder, ResizeJob(count)).workers)
    if wait:
        _wait_until(lambda: _has_got_to(folder, count), f"job {job} did not get to {count} devices")
    print(
        f"job {job} runs on {counted(count, 'device')}"
        if wait
        else f"job {job} goes from {before} to {counted(count, 'device')}"
    )


def _cap(manager: Client, job: str, devices: int | None, *, wait: bool) -> None:
    job = manager.job_id(job)
    manager.post(f"/api/jobs/{job}/resize", devices="auto" if devices is None else devices)
    most = "as many devices as the policy gives it" if devices is None else f"at most {counted(devices, 'device')}"
    print(f"job {job} has {most} from now on")

    def has_got_to(count: int) -> bool:
        view = manager.get(f"/api/jobs/{job}")
        return len(view["devices"]) <= count and view["state"] != JobState.RESIZING

    if wait and devices is not None:
        _wait_until(lambda: has_got_to(devices), f"job {job} did not get to {devices} devices")


def _has_got_to(folder: JobFolder, devices: int) -> bool:
    job = folder.path.name
    if not folder.is_locked():
        raise LaunchError(
            f"job {job} ended before it got to {devices} devices: its state is {folder.read_state().state}"
        )
    status = control.ask(folder, GetStatus())
    if len(status.wanted) != devices:
        raise LaunchError(
            f"another request has changed job {job} to {len(status.wanted)} devices meanwhile, not {devices}"
        )
    return status.state == JobState.RUNNING and len(status.workers) == devices


def stop(
    job: JobArgument,
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="Write a checkpoint first, for `vf run --resume`.")
    ] = False,
) -> None:
    """End a running job and all its workers."""
    if (remote := Client.remote()) is not None:
        _stop_remote(remote, remote.job_id(job), checkpoint=checkpoint)
        return
    folder = _running(job)
    job = folder.path.name
    if folder.spec().managed and (manager := Client.answering()) is not None:
        manager.post(f"/api/jobs/{job}/{'pause' if checkpoint else 'cancel'}")
    else:
        control.ask(folder, StopJob(checkpoint))
    _wait_until(lambda: not folder.is_locked(), f"job {job} has not ended")
    status = folder.read_state()
    if checkpoint and status.state == JobState.FAILED:
        why = status.reason or f"`vf logs {job}` may show why"
        raise LaunchError(f"job {job} has ended, and no checkpoint was written: {why} ({how_to_go_on(folder)})")
    print(f"job {job} has ended")
    if checkpoint and can_go_on(folder, status.state):
        print(how_to_go_on(folder))


def _stop_remote(manager: Client, job: str, *, checkpoint: bool) -> None:
    manager.post(f"/api/jobs/{job}/{'pause' if checkpoint else 'cancel'}")

    def state() -> JobState:
        return JobState(manager.get(f"/api/jobs/{job}")["state"])

    _wait_until(lambda: state() in (*ENDED, JobState.PAUSED), f"job {job} has not ended")
    print(f"job {job} is paused: `vf resume {job}`" if state() == JobState.PAUSED else f"job {job} has ended")


def _wait_until(is_so: Callable[[], bool], otherwise: str) -> None:
    """Wait for a while; then raise an error that says what is the case *otherwise*."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise LaunchError(f"{otherwise} within {WAIT_SECONDS:.0f} s")
        time.sleep(0.1)


def describe(folder: JobFolder) -> dict[str, Any]:
    """A job as ``vf status --json`` shows it."""
    folder_view = FolderView(folder)
    view, status = folder_view.look(time.time())
    described = view.to_json() | status.as_json()
    described["checkpoint_step"] = step_of(folder.latest_checkpoint())
    described["checkpoints"] = [step_of(path) for path in folder.automatic_checkpoints()]
    cells = folder_view.watch.cells if not view.state.is_at_rest else None
    described["cells"] = cells.rows if cells is not None else []
    described["shadows"] = cells.shadows if cells is not None else ()
    described["changes"] = [
        {"generation": c.generation, "step": c.step, "cause": c.cause, "devices": c.devices, "pause_ms": c.pause_ms}
        for c in folder_view.watch.changes
    ]
    return described


def _print_more(folder: JobFolder) -> None:
    job = describe(folder)
    print_cells_of(job)
    if can_go_on(folder, JobState(job["state"])):
        print(how_to_go_on(folder))
        if earlier := job["checkpoints"][:-1]:
            print(f"  --from-checkpoint {' or '.join(map(str, reversed(earlier)))} chooses an earlier one")
    for change in job["changes"]:
        pause = ", ".join(f"{name} {ms:.0f} ms" for name, ms in change["pause_ms"].items())
        print_line(f"generation {change['generation']} at step {change['step']} ({change['cause']}): "
              f"devices {' '.join(change['devices'])}; {pause}")  # fmt: skip


def _running(job: str) -> JobFolder:
    folder = JobFolder.of(job)
    if not folder.is_locked():
        name, state = folder.path.name, folder.read_state().state
        if state == JobState.QUEUED:
            raise LaunchError(f"job {name} waits for devices: `vf cancel {name}` ends it")
        raise LaunchError(f"job {name} is not running: its state is {state}")
    return folder
