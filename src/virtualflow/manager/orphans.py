"""Job folders that a manager has no record of. Nothing is deleted because it is unknown.

One that runs is taken in, as its folder and its coordinator show it. The others are orphans: listed, and kept.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Collection, Container, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from virtualflow.core.job_state import JobState
from virtualflow.core.job_terms import JobTerms
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

_log = logging.getLogger(__name__)


def unrecorded(known: Container[str]) -> Iterator[JobFolder]:
    """Folders of managed jobs that are not *known*, oldest first; with those that do not show whose they are."""
    for path in sorted((home() / "jobs").glob("*")):
        if path.name not in known and path.is_dir() and is_managed(JobFolder(path)):
            yield JobFolder(path)


class RunningOrphans:
    """Finds jobs of a manager that run and have no record."""

    def __init__(self) -> None:
        self._not_managed: set[str] = set()  # jobs that ``vf run`` has started: looked at once

    def find(self, recorded_ids: Collection[str], now: float) -> list[Record]:
        """Those that are not in *recorded_ids*, each as a new record."""
        jobs = home() / "jobs"
        known = {*recorded_ids, *self._not_managed}
        records = []
        for path in sorted(path for path in jobs.glob("*") if path.name not in known):
            folder = JobFolder(path)
            try:
                if not is_managed(folder):
                    self._not_managed.add(path.name)
                elif folder.is_locked():
                    records.append(adopted(folder, now))
                    _log.warning("job %s runs, and there is no record of it: it is taken in", path.name)
            except (OSError, DamagedError) as error:
                _log.error("%s is locked by an unknown process: %s", path, error)
        return records


def is_managed(folder: JobFolder) -> bool:
    """Whether it is, or may be, the folder of a manager's job."""
    try:
        return folder.spec().managed
    except (OSError, DamagedError):
        return True


def caught_up(record: Record, folder: JobFolder, now: float) -> dict[str, Any]:
    """What a record of a job that does not run lacks: it may be older than the job's folder.

    That is so after an older copy of the records was restored.
    """
    if folder.is_locked():
        devices = folder.read_state().devices or folder.spec().devices
        facts = {"state": JobState.RUNNING, "wish": None, "devices": devices}
        return facts | {"started": record.started or now, "launched": now}
    try:
        status = folder.written_state()
    except (FileNotFoundError, DamagedError):
        return {}
    is_over = status.state == JobState.DONE or (status.over and status.state.is_ended)
    if not is_over:
        return {}
    failure = status.reason if status.state == JobState.FAILED else None
    return {"state": status.state, "ended": now, "devices": (), "failure": failure}


def described(folder: JobFolder) -> dict[str, Any]:
    """An orphan as ``vf cluster orphans`` shows it."""
    watch = Watch(folder.path / STREAM)
    watch.read()
    checkpoint = folder.latest_checkpoint()
    described_as: dict[str, Any] = {"id": folder.path.name, "folder": str(folder.path), "name": "", "script": ""}
    described_as |= {"step": watch.step, "checkpoint": str(checkpoint) if checkpoint else None}
    try:
        record = record_of(folder, time.time())
        described_as |= {"name": record.name, "script": record.description.script}
        status = folder.read_state()
        described_as |= {"state": status.state, "reason": status.reason}
    except (OSError, DamagedError) as error:
        described_as |= {"state": JobState.UNKNOWN, "reason": str(error)}
    return described_as


def record_of(folder: JobFolder, now: float) -> Record:
    """The job of *folder* as far as that, and its coordinator if there is one, show it. Raises DamagedError."""
    status = folder.read_state()
    record = _as_submitted(folder) or _as_launched(folder.path.name, folder.spec(), now)
    record = record.changed(
        state=JobState.PAUSED,
        devices=status.devices,
        virtual_nodes=status.virtual_nodes or record.terms.virtual_nodes,
        resizes=status.resizes,
        failures=status.failures,
    )
    for pid in lock_holders.holders(folder.lock):
        words = lock_holders.command_line_of(pid)
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
        if SERVE in lock_holders.command_line_of(pid):
            return lock_holders.environment_of(pid)
    return None


def _as_submitted(folder: JobFolder) -> Record | None:
    try:
        record = recorded.from_json((folder.path / SUBMITTED).read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return record if record.id == folder.path.name else None


def _as_launched(job_id: str, spec: JobSpec, now: float) -> Record:
    return Record(
        id=job_id,
        description=replace(spec.description, emulated={}),
        directory=str(Path(spec.description.script).parent),
        interpreter=sys.executable,
        terms=JobTerms(demand=max(1, len(spec.devices))),
        submitted=now,
    )
