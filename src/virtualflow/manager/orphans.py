"""Job folders that a manager has no record of. Nothing is deleted because it is unknown.

One that runs is taken in, as its folder and its coordinator show it. The others are orphans: listed, and kept.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Container, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from virtualflow.core.job_state import ENDED, JobState
from virtualflow.errors import DamagedError, LaunchError
from virtualflow.events import STREAM
from virtualflow.job import lock_holders
from virtualflow.job.folder import JobFolder, JobSpec
from virtualflow.job.history import Watch
from virtualflow.manager import environment
from virtualflow.manager import record as recorded
from virtualflow.manager.description import SUBMITTED
from virtualflow.manager.hung import SERVE
from virtualflow.manager.record import Record
from virtualflow.system.home import home


def strays(known: Container[str]) -> Iterator[JobFolder]:
    """Folders of managed jobs that are not *known*, oldest first; with those that do not show whose they are."""
    for path in sorted((home() / "jobs").glob("*")):
        if path.name not in known and path.is_dir() and is_managed(JobFolder(path)):
            yield JobFolder(path)


def is_managed(folder: JobFolder) -> bool:
    """Whether it is, or may be, the folder of a manager's job."""
    try:
        return folder.spec().managed
    except (OSError, DamagedError):
        return True


def caught_up(record: Record, folder: JobFolder, now: float) -> dict[str, Any]:
    """What a record of a job that does not run lacks: it may be older than the job's folder.

    That is so if somebody has put back a copy of the records.
    """
    if folder.is_locked():
        devices = tuple(worker["device"] for worker in folder.read_state()["workers"]) or folder.spec().devices
        facts = {"state": JobState.RUNNING, "wish": None, "devices": devices}
        return facts | {"started": record.started or now, "launched": now}
    try:
        state = folder.written_state()
    except (FileNotFoundError, DamagedError):
        return {}
    is_over = state["state"] == JobState.DONE or (state.get("over") is True and state["state"] in ENDED)
    if not is_over:
        return {}
    failure = str(state.get("reason", "")) if state["state"] == JobState.FAILED else None
    return {"state": JobState(state["state"]), "ended": now, "devices": (), "failure": failure}


def described(folder: JobFolder) -> dict[str, Any]:
    """An orphan, for those who look."""
    watch = Watch(folder.path / STREAM)
    watch.read()
    checkpoint = folder.latest_checkpoint()
    described_as: dict[str, Any] = {"id": folder.path.name, "folder": str(folder.path), "name": "", "script": ""}
    described_as |= {"step": watch.step, "checkpoint": str(checkpoint) if checkpoint else None}
    try:
        record = record_of(folder, time.time())
        described_as |= {"name": record.name, "script": record.description.script}
        state = folder.read_state()
        described_as |= {"state": state["state"], "reason": state.get("reason", "")}
    except (OSError, DamagedError) as error:
        described_as |= {"state": JobState.UNKNOWN, "reason": str(error)}
    return described_as


def record_of(folder: JobFolder, now: float) -> Record:
    """The job of *folder* as far as that, and its coordinator if there is one, show it. Raises DamagedError."""
    state = folder.read_state()
    record = _as_submitted(folder) or _as_launched(folder.path.name, folder.spec(), now)
    record = replace(
        record,
        state=JobState.PAUSED,
        devices=tuple(worker["device"] for worker in state["workers"]),
        virtual_nodes=state.get("virtual_nodes") or record.virtual_nodes,
        resizes=state.get("resizes", 0),
        failures=state.get("failures", 0),
    )
    for pid in lock_holders.holders(folder.lock):
        words = lock_holders.words_of(pid)
        if SERVE in words:
            directory = lock_holders.directory_of(pid) or record.directory
            record = replace(record, interpreter=words[0], directory=directory, launches=1)
    if record.launches or folder.is_locked():  # by its coordinator, or by workers that outlive it for a moment
        record = replace(record, state=JobState.RUNNING, started=record.started or now, launched=now)
    return record


def adopted(folder: JobFolder, now: float) -> Record:
    """The job of *folder*, with the variables that it was submitted with, or others for its next launch."""
    record = record_of(folder, now)
    try:
        environment.kept(folder.path)
    except LaunchError:
        with contextlib.suppress(OSError):
            environment.keep(folder.path, environment.allowed(_coordinator_variables(folder) or dict(os.environ)))
    return record


def _coordinator_variables(folder: JobFolder) -> dict[str, str] | None:
    for pid in lock_holders.holders(folder.lock):
        if SERVE in lock_holders.words_of(pid):
            return lock_holders.environment_of(pid)
    return None


def _as_submitted(folder: JobFolder) -> Record | None:
    try:
        record = recorded.from_json((folder.path / SUBMITTED).read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return record if record.id == folder.path.name else None


def _as_launched(job_id: str, spec: JobSpec, now: float) -> Record:
    demand = max(1, len(spec.devices))
    return Record(
        id=job_id,
        description=replace(spec.description, emulated={}),
        directory=str(Path(spec.script).parent),
        interpreter=sys.executable,
        priority=1.0,
        demand=demand,
        min_devices=1,
        submitted=now,
    )
