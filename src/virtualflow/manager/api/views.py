"""What there is to see of a cluster or of one job, as plain values."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from virtualflow import __version__
from virtualflow.core.devices import type_of
from virtualflow.errors import ManagerError, UnknownJobError
from virtualflow.events import STREAM
from virtualflow.job import control
from virtualflow.job.folder import ENDED, JobFolder
from virtualflow.job.history import Watch
from virtualflow.job.output import LEAD_LOG
from virtualflow.manager.manager import Manager
from virtualflow.manager.records import Record
from virtualflow.manager.submission import Submission

View = dict[str, Any]
MOST_ENDED = 50  # jobs that have ended are shown until so many others have
MOST_LOG_BYTES = 1 << 18


class Source(Protocol):
    """Whatever the server shows, and what can be done to it."""

    @property
    def version(self) -> int:
        """Grows when there is something new to see."""
        ...

    def state(self) -> View: ...
    def history(self) -> View: ...
    def job(self, job_id: str) -> View: ...
    def watch(self, job_id: str) -> Watch: ...
    def folder(self, job_id: str) -> JobFolder: ...
    def submit(self, submission: Submission) -> str: ...
    def set_priority(self, job_id: str, priority: float) -> None: ...
    def cap(self, job_id: str, devices: int | None) -> None: ...
    def pause(self, job_id: str) -> None: ...
    def resume(self, job_id: str) -> None: ...
    def cancel(self, job_id: str) -> None: ...
    def lose(self, device: str) -> None: ...
    def give_back(self, device: str) -> None: ...
    def orphans(self) -> list[View]: ...
    def take_in(self, job_id: str) -> None: ...


class ClusterSource:
    """A manager's jobs and devices."""

    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self.submit, self.cap, self.set_priority = manager.submit, manager.cap, manager.set_priority
        self.pause, self.resume, self.cancel = manager.pause, manager.resume, manager.cancel
        self.orphans, self.take_in = manager.orphans, manager.take_in

    @property
    def version(self) -> int:
        return self.manager.books.version

    def lose(self, device: str) -> None:
        self.manager.lose([device])

    def give_back(self, device: str) -> None:
        self.manager.give_back([device])

    def folder(self, job_id: str) -> JobFolder:
        return self.manager.fleet.folder(self.manager.books[job_id].id)

    def watch(self, job_id: str) -> Watch:
        with self.manager.lock:
            return self.manager.fleet.watch(self.manager.books[job_id].id)

    def state(self) -> View:
        manager = self.manager
        with manager.lock:
            now = time.time()
            places = {state.id: place for place, state in enumerate(manager.scheduler.snapshot().queue)}
            records = manager.books.all()
            ended = [record.id for record in records if record.is_over]
            hidden = set(ended[:-MOST_ENDED])
            cluster = {
                "name": "VirtualFlow",
                "policy": manager.policy.name,
                "backend": manager.cluster.backend,
                "started": manager.started,
                "now": now,
                "version": __version__,
                "troubles": manager.troubles,
            }
            jobs = [self._job(record, now, places.get(record.id)) for record in records if record.id not in hidden]
            return {"mode": "cluster", "cluster": cluster, "jobs": jobs, "devices": self._devices()}

    def history(self) -> View:
        manager = self.manager
        with manager.lock:
            segments = [segment | {"types": _types(segment["devices"])} for segment in manager.books.segments()]
            names = {record.id: record.name for record in manager.books.all()}
        return {"segments": [segment | {"name": names.get(segment["job"], segment["job"])} for segment in segments]}

    def job(self, job_id: str) -> View:
        manager = self.manager
        with manager.lock:
            record = manager.books[job_id]
            places = {state.id: place for place, state in enumerate(manager.scheduler.snapshot().queue)}
            watch = manager.fleet.watch(job_id)
            view = self._job(record, time.time(), places.get(job_id))
            facts = {
                "script": record.script,
                "arguments": record.arguments,
                "folder": record.directory,
                "interpreter": record.interpreter,
                "events": list(watch.notable),
                "failure": record.failure,
                "launches": record.launches,
                "retries": record.retries,
                "workers": manager.fleet.state(job_id).get("workers", []),
            }
            return view | facts

    def _job(self, record: Record, now: float, place: int | None) -> View:
        manager = self.manager
        live = manager.fleet.state(record.id) if record.state == "RUNNING" else {}
        watch = manager.fleet.watch(record.id) if record.started is not None else None
        runs = manager.run_seconds(record)
        return {
            "id": record.id,
            "name": record.name,
            "priority": record.priority,
            "state": manager.state_of(record),
            "devices": list(manager.fleet.holds(record.id)) if record.state == "RUNNING" else [],
            "demand": record.demand,
            "want": record.wants,
            "min": record.least,
            "cap": record.cap,
            "virtual_nodes": record.virtual_nodes,
            "mapping": {worker["device"]: worker["virtual_nodes"] for worker in live.get("workers", [])},
            **_progress(watch, running=record.state == "RUNNING"),
            "queued_seconds": round(max(0.0, (record.ended or now) - record.submitted - runs), 1),
            "run_seconds": round(runs, 1),
            "resizes": record.resizes,
            "failures": record.failures,
            "reason": reason(manager, record, place),
            "submitted": record.submitted,
            "started": record.started,
            "ended": record.ended,
        }

    def _devices(self) -> list[View]:
        manager = self.manager
        by_device = {
            device: record.id for record in manager.books.running() for device in manager.fleet.holds(record.id)
        }
        placement = manager.scheduler.placement
        return [
            {
                "name": name,
                "type": type_of(name),
                "machine": placement.machine_of(name),
                "job": by_device.get(name),
                "lost": name in placement.lost,
            }
            for name in placement.devices
        ]


class JobSource:
    """One job that ``vf run`` has started, without a manager."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self._id = folder.path.name
        self._watch = Watch(folder.path / STREAM)
        self._begun = time.time()

    @property
    def version(self) -> int:
        return int(4 * time.time())  # its folder is all there is: look again

    def state(self) -> View:
        view = self._view()
        devices = [
            {"name": name, "type": type_of(name), "machine": 0, "job": self._id, "lost": False}
            for name in view["devices"]
        ]
        now = time.time()
        cluster = {"name": view["name"], "policy": "", "backend": "local", "started": self._begun, "now": now}
        return {"mode": "job", "cluster": cluster | {"version": __version__}, "jobs": [view], "devices": devices}

    def history(self) -> View:
        name = self._view()["name"]
        ended = self._folder.read_state()["state"] in ENDED
        return {
            "segments": [
                {"job": self._id, "name": name, "devices": held, "types": _types(held), "begin": begin, "end": end}
                for begin, end, held in held_over_time(
                    self._watch, self._begun, self._folder.spec().devices, ended=ended
                )
            ]
        }

    def job(self, job_id: str) -> View:
        spec = self._of(job_id).spec()
        facts = {"script": spec.script, "arguments": list(spec.arguments), "folder": "", "failure": None}
        return self._view() | facts | {"events": list(self._watch.notable)}

    def watch(self, job_id: str) -> Watch:
        self._of(job_id)
        self._watch.read()
        return self._watch

    def folder(self, job_id: str) -> JobFolder:
        return self._of(job_id)

    def cap(self, job_id: str, devices: int | None) -> None:
        if devices is None:
            raise ManagerError("a job without a manager has no automatic number of devices: give a number")
        control.ask(self._of(job_id), verb="resize", devices=devices)

    def cancel(self, job_id: str) -> None:
        control.ask(self._of(job_id), verb="stop", checkpoint=False)

    def submit(self, submission: Submission) -> str:
        raise ManagerError(_ONE_JOB)

    def set_priority(self, job_id: str, priority: float) -> None:
        raise ManagerError(_ONE_JOB)

    def pause(self, job_id: str) -> None:
        raise ManagerError(_ONE_JOB)

    def resume(self, job_id: str) -> None:
        raise ManagerError(_ONE_JOB)

    def lose(self, device: str) -> None:
        raise ManagerError(_ONE_JOB)

    def give_back(self, device: str) -> None:
        raise ManagerError(_ONE_JOB)

    def orphans(self) -> list[View]:
        return []

    def take_in(self, job_id: str) -> None:
        raise ManagerError(_ONE_JOB)

    def _of(self, job_id: str) -> JobFolder:
        if job_id != self._id:
            raise UnknownJobError(f"this is the dashboard of job {self._id} alone")
        return self._folder

    def _view(self) -> View:
        self._watch.read()
        state, spec = self._folder.read_state(), self._folder.spec()
        devices = [worker["device"] for worker in state["workers"]]
        return {
            "id": self._id,
            "name": spec.script.rpartition("/")[2],
            "priority": 1,
            "state": state["state"],
            "devices": devices,
            "demand": len(spec.devices),
            "want": len(state.get("wanted", spec.devices)),
            "min": 1,
            "cap": None,
            "virtual_nodes": state.get("virtual_nodes"),
            "mapping": {worker["device"]: worker["virtual_nodes"] for worker in state["workers"]},
            **_progress(self._watch, running=state["state"] not in ENDED),
            "queued_seconds": 0.0,
            "run_seconds": round(time.time() - self._begun, 1),
            "resizes": state.get("resizes", 0),
            "failures": state.get("failures", 0),
            "reason": state.get("reason", ""),
            "submitted": self._begun,
            "started": self._begun,
            "ended": None,
        }


def held_over_time(
    watch: Watch, begun: float, devices: Sequence[str], *, ended: bool
) -> Iterator[tuple[float, float | None, list[str]]]:
    """Stretches of time in which a job had the same devices: none while it was stopped.

    Its present run has begun at *begun*, and has had *devices* since before its script said so.
    """
    before = [(at, held) for at, held in watch.shapes if at < begun]
    since = [(begun, tuple(devices)), *((at, held) for at, held in watch.shapes if at >= begun)]
    if before and before[-1][1]:  # of the present run nothing was heard yet
        last = watch.last_time if watch.last_time is not None and watch.last_time < begun else begun
        before.append((last, ()))
    marks = [*before, *since]
    marks = [mark for place, mark in enumerate(marks) if place == 0 or mark[1] != marks[place - 1][1]]
    ends = [*(at for at, _ in marks[1:]), max(begun, watch.last_time or begun) if ended else None]
    for (begin, held), end in zip(marks, ends, strict=True):
        if held:
            yield begin, end, list(held)


_ONE_JOB = "this is the dashboard of one job: there is no manager that could do that. `vf cluster up` starts one."


def series(watch: Watch) -> View:
    """A job's samples, by column."""
    samples = list(watch.samples)  # it grows meanwhile
    columns = ("time", "step", "loss", "examples_per_second", "devices")
    return {name: [getattr(sample, name) for sample in samples] for name in columns}


def logs(folder: JobFolder, offset: int) -> View:
    """What the lead has printed from *offset* on, as much as one answer may hold."""
    path = folder.path / "logs" / LEAD_LOG
    if not path.exists():
        return {"text": "", "offset": 0}
    size = path.stat().st_size
    if offset > size:  # it was rotated
        offset = 0
    with path.open("rb") as file:
        file.seek(max(offset, size - MOST_LOG_BYTES))
        return {"text": file.read().decode(errors="replace"), "offset": size}


def reason(manager: Manager, record: Record, place: int | None) -> str:
    """Why the job does not run, or not on all that it asks for, in words. *place* is its place in the queue."""
    if record.failure:
        return record.failure.strip().splitlines()[-1]
    if trouble := manager.trouble_of(record.id):
        return f"the manager can't see to it, and tries again: {trouble}"
    if record.wish is not None:
        told = {"pause": "it is to pause: it stops at its next step boundary", "cancel": "it is being cancelled"}
        return told.get(record.wish, "others need its devices: it stops at its next step boundary")
    if record.state == "PAUSED" and record.trouble:
        return record.trouble.replace("\n", " ")
    if record.state == "PAUSED":
        return f"paused by its owner: vf resume {record.id}"
    if record.state == "QUEUED":
        return _why_waiting(manager, record, place)
    if record.state == "RUNNING" and len(record.devices) < record.wants:
        return f"{record.wants - len(record.devices)} more device(s) would be of use, but others have a claim to them"
    return ""


def _why_waiting(manager: Manager, record: Record, place: int | None) -> str:
    if record.devices:
        others = sorted(
            other.name
            for other in manager.books.running()
            if other.id != record.id and set(manager.fleet.holds(other.id)) & set(record.devices)
        )
        return f"starts when {', '.join(others)} has left its devices" if others else "starts now"
    snapshot = manager.scheduler.snapshot()
    if not snapshot.devices:
        return "the cluster has no devices at the moment"
    state = manager.scheduler.jobs.get(record.id)
    if state is not None and not snapshot.within_reach(state.job):
        return f"the cluster has {snapshot.devices} device(s) now, and it needs at least {state.job.least}"
    if manager.policy.round_seconds is not None and snapshot.idle:
        return f"it may start at the next round; rounds take {manager.policy.round_seconds:.0f} s"
    ahead = f"{place} job(s) are ahead of it, and " if place else ""
    if snapshot.idle:
        least = record.least if record.least > snapshot.idle else record.wants
        return f"{ahead}only {snapshot.idle} device(s) are free, which is not enough for its {least}"
    return f"{ahead}all {snapshot.devices} device(s) are in use, and the policy takes none away for it"


def _progress(watch: Watch | None, *, running: bool) -> View:
    if watch is None:
        return {"step": 0, "steps": None, "loss": None, "examples_per_second": None, "eta_seconds": None}
    return {
        "step": watch.step,
        "steps": watch.steps,
        "loss": watch.loss,
        "examples_per_second": watch.examples_per_second if running else None,
        "eta_seconds": watch.seconds_left if running else None,
    }


def _types(devices: list[str]) -> dict[str, int]:
    return dict(Counter(type_of(device) for device in devices))
