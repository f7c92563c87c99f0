"""What there is to see of a cluster or of one job, as plain values."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from virtualflow import __version__
from virtualflow.cluster.recorded import to_json
from virtualflow.core.cells import Cells
from virtualflow.core.cluster_view import AllocationView, ClusterView, DeviceView, history_of, state_of
from virtualflow.core.devices import Pool, type_of
from virtualflow.core.job_view import JobDetails, JobView
from virtualflow.errors import ManagerError, UnknownJobError
from virtualflow.job import control
from virtualflow.job.folder import JobFolder
from virtualflow.job.folder_view import FolderView, device_periods
from virtualflow.job.history import Watch
from virtualflow.job.status import with_cells
from virtualflow.job.wire_messages import ResizeJob, StopJob
from virtualflow.manager.job_views import view_of
from virtualflow.manager.manager import Manager
from virtualflow.manager.recording import recorded
from virtualflow.manager.submission import Submission
from virtualflow.manager.token_book import TokenBook

View = dict[str, Any]
MAX_ENDED = 50  # of the jobs that have ended, the latest are shown
MAX_TEXT_BYTES = 1 << 18  # of one answer


class Source(Protocol):
    """Whatever the server shows, and what can be done to it."""

    @property
    def version(self) -> int:
        """Grows when there is something new to see."""
        ...

    def state(self) -> View: ...
    def history(self) -> View: ...
    def sweep(self, sweep: str) -> list[View]: ...
    def recorded(self, since: float) -> View:
        """Jobs of this time, as a simulation needs them."""
        ...

    def job(self, job_id: str) -> View: ...
    def owner(self, job_id: str) -> str: ...
    def watch(self, job_id: str) -> Watch: ...
    def pauses_ms(self) -> Sequence[float]:
        """How long each change of membership made its job stand still, of all jobs ever seen: this only grows."""
        ...

    def folder(self, job_id: str) -> JobFolder: ...
    def submit(self, submission: Submission) -> str: ...
    def set_priority(self, job_id: str, priority: float) -> None: ...
    def cap(self, job_id: str, devices: int | None) -> None: ...
    def pause(self, job_id: str) -> None: ...
    def resume(self, job_id: str, from_checkpoint: str | None = None) -> None: ...
    def cancel(self, job_id: str) -> None: ...
    def lose(self, device: str) -> None: ...
    def give_back(self, device: str) -> None: ...
    def plan_maintenance(self, device: str, begin: float, end: float) -> None: ...
    def orphans(self) -> list[View]: ...
    def take_in(self, job_id: str) -> None: ...


class ClusterSource:
    """A manager's jobs and devices."""

    def __init__(self, manager: Manager, book: TokenBook | None = None) -> None:
        """*book*: of which tokens there may be trouble."""
        self.manager = manager
        self._book = book
        self.submit, self.cap, self.set_priority = manager.submit, manager.cap, manager.set_priority
        self.pause, self.resume, self.cancel = manager.pause, manager.resume, manager.cancel
        self.plan_maintenance = manager.plan_maintenance
        self.orphans, self.take_in = manager.orphans, manager.take_in

    @property
    def version(self) -> int:
        return self.manager.records.version

    def lose(self, device: str) -> None:
        self.manager.lose([device])

    def give_back(self, device: str) -> None:
        self.manager.give_back([device])

    def folder(self, job_id: str) -> JobFolder:
        return self.manager.fleet.folder(self.manager.records[job_id].id)

    def watch(self, job_id: str) -> Watch:
        with self.manager.lock:
            return self.manager.fleet.watch(self.manager.records[job_id].id)

    def pauses_ms(self) -> Sequence[float]:
        return self.manager.reconciler.pauses_ms

    def state(self) -> View:
        manager = self.manager
        with manager.lock:
            now = manager.clock()
            places = self._places()
            records = manager.records.all()
            going = {record.description.sweep for record in records if not record.is_over}
            ended = [record.id for record in records if record.is_over and record.description.sweep not in going - {""}]
            hidden = set(ended[:-MAX_ENDED])
            cluster = ClusterView(
                "VirtualFlow",
                manager.policy.name,
                manager.cluster.backend,
                manager.started,
                now,
                __version__,
                [*manager.problems, *self._troubles()],
            )
            shown = [record for record in records if record.id not in hidden]
            jobs = [view_of(manager, record, places.get(record.id), now) for record in shown]
            return state_of("cluster", cluster, jobs, self._devices())

    def _troubles(self) -> list[str]:
        return [self._book.problem] if self._book is not None and self._book.problem else []

    def owner(self, job_id: str) -> str:
        with self.manager.lock:
            return self.manager.records[job_id].terms.owner

    def _places(self) -> dict[str, int]:
        """In the queue, by job."""
        return {state.id: place for place, state in enumerate(self.manager.scheduler.snapshot().queue)}

    def history(self) -> View:
        manager = self.manager
        with manager.lock:
            names = {record.id: record.name for record in manager.records.all()}
            return history_of(
                AllocationView.of(job, names.get(job, job), devices, begin, end)
                for job, begin, end, devices in manager.records.allocations()
            )

    def sweep(self, sweep: str) -> list[View]:
        manager = self.manager
        with manager.lock:
            records = [record for record in manager.records.all() if sweep and record.description.sweep == sweep]
            if not records:
                raise UnknownJobError(f"the manager has no sweep {sweep!r}. `vf queue` shows those with jobs.")
            now, places = manager.clock(), self._places()
            return [view_of(manager, record, places.get(record.id), now).to_json() for record in records]

    def recorded(self, since: float) -> View:
        with self.manager.lock:
            return to_json(recorded(self.manager, since))

    def job(self, job_id: str) -> View:
        manager = self.manager
        with manager.lock:
            record = manager.records[job_id]
            watch, status = manager.fleet.watch(job_id), manager.fleet.status(job_id)
            cells = watch.cells if status is not None else None
            view = view_of(manager, record, self._places().get(job_id), manager.clock())
            details = JobDetails(
                record.description,
                record.directory,
                record.interpreter,
                list(watch.notable),
                with_cells(status, cells).workers if status is not None else (),
                record.failure,
                record.launches,
                record.terms,
                record.memory,
                *_grid(cells),
                record.notice,
                manager.reconciler.speeds.view(record, self._pools()),
            )
            return details.with_view(view)

    def _pools(self) -> tuple[Pool, ...]:
        sizes = self.manager.scheduler.placement.machine_sizes
        return tuple(Pool(name, machines) for name, machines in sizes.items())

    def _devices(self) -> list[DeviceView]:
        manager = self.manager
        by_device = {
            device: record.id for record in manager.records.running() for device in manager.fleet.holds(record.id)
        }
        placement = manager.scheduler.placement
        windows = {window.device: window for window in reversed(manager.records.windows)}  # the next one of each
        return [
            DeviceView(
                name,
                type_of(name),
                placement.machine_of(name),
                by_device.get(name),
                lost=name in placement.lost,
                memory=manager.cluster.memory.get(type_of(name)),
                maintenance=(windows[name].begin, windows[name].end) if name in windows else None,
            )
            for name in placement.devices
        ]


class JobSource:
    """One job that ``vf run`` has started, without a manager."""

    def __init__(self, folder: JobFolder, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._id = folder.path.name
        self._clock = clock
        self._status = FolderView(folder)
        self._begun = clock()

    @property
    def version(self) -> int:
        return int(4 * self._clock())  # its folder is all there is: look again

    def _view(self) -> JobView:
        return self._status.look(self._clock())[0]

    def state(self) -> View:
        view = self._view()
        devices = [DeviceView(name, type_of(name), 0, self._id) for name in view.devices]
        cluster = ClusterView(view.name, "", self._status.spec().backend, self._begun, self._clock(), __version__)
        return state_of("job", cluster, [view], devices)

    def history(self) -> View:
        view = self._view()
        devices = self._status.spec().devices
        periods = device_periods(self._status.watch, self._begun, devices, ended=view.state.is_ended)
        return history_of(AllocationView.of(self._id, view.name, held, begin, end) for begin, end, held in periods)

    def sweep(self, sweep: str) -> list[View]:
        raise UnknownJobError(_ONE_JOB)

    def recorded(self, since: float) -> View:
        raise ManagerError(_ONE_JOB)

    def job(self, job_id: str) -> View:
        description = self._of(job_id).spec().description
        view, status = self._status.look(self._clock())
        watch = self._status.watch
        cells, shadows = _grid(None if view.state.is_at_rest else watch.cells)
        details = JobDetails(description, "", "", list(watch.notable), status.workers, cells=cells, shadows=shadows)
        return details.with_view(view)

    def owner(self, job_id: str) -> str:
        self._of(job_id)
        return ""

    def watch(self, job_id: str) -> Watch:
        self._of(job_id)
        self._status.watch.read()
        return self._status.watch

    def pauses_ms(self) -> Sequence[float]:
        return self.watch(self._id).pauses_ms

    def folder(self, job_id: str) -> JobFolder:
        return self._of(job_id)

    def cap(self, job_id: str, devices: int | None) -> None:
        if devices is None:
            raise ManagerError("a job without a manager has no automatic number of devices: give a number")
        control.ask(self._of(job_id), ResizeJob(devices))

    def cancel(self, job_id: str) -> None:
        control.ask(self._of(job_id), StopJob(checkpoint=False))

    def submit(self, submission: Submission) -> str:
        raise ManagerError(_ONE_JOB)

    def set_priority(self, job_id: str, priority: float) -> None:
        raise ManagerError(_ONE_JOB)

    def pause(self, job_id: str) -> None:
        raise ManagerError(_ONE_JOB)

    def resume(self, job_id: str, from_checkpoint: str | None = None) -> None:
        raise ManagerError(_ONE_JOB)

    def lose(self, device: str) -> None:
        raise ManagerError(_ONE_JOB)

    def plan_maintenance(self, device: str, begin: float, end: float) -> None:
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


def _grid(cells: Cells | None) -> tuple[Sequence[Sequence[str]], Sequence[Sequence[str]]]:
    """The cells and the shadows of a model in stages, as they are drawn."""
    return (cells.rows, cells.shadows) if cells is not None else ((), ())


_ONE_JOB = "this is the dashboard of one job: there is no manager that could do that. `vf cluster up` starts one."


def series(watch: Watch) -> View:
    """A job's samples, by column."""
    samples = list(watch.samples)  # it grows meanwhile
    columns = ("time", "step", "loss", "examples_per_second", "devices")
    series: View = {name: [getattr(sample, name) for sample in samples] for name in columns}
    series["metrics"] = {
        name: {"time": [at for at, _, _ in points], "step": [step for _, step, _ in points],
               "value": [value if math.isfinite(value) else None for _, _, value in points]}
        for name, points in watch.metrics.items()
    }  # fmt: skip
    return series


def text_from(path: Path, offset: int, *, tail: bool) -> View:
    """The text at *path* from *offset* on, as much as one answer may hold: its end with *tail*, else its beginning."""
    try:
        size = path.stat().st_size
        offset = 0 if offset > size else offset  # it was rotated
        with path.open("rb") as file:
            file.seek(max(offset, size - MAX_TEXT_BYTES) if tail else offset)
            data = file.read(MAX_TEXT_BYTES)
            if not tail and len(data) == MAX_TEXT_BYTES and b"\n" in data:  # whole lines, so that no character is cut
                data = data[: data.rindex(b"\n") + 1]
            return {"text": data.decode(errors="replace"), "offset": size if tail else offset + len(data)}
    except FileNotFoundError:
        return {"text": "", "offset": 0}
