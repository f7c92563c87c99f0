"""A job as its folder shows it: what ``vf status`` prints, and the page of ``vf run --dashboard``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from virtualflow.core.job_description import JobDescription
from virtualflow.core.job_view import JobView
from virtualflow.errors import DamagedError
from virtualflow.events import STREAM
from virtualflow.job.device_use import UseReader, Uses
from virtualflow.job.folder import JobFolder, JobSpec
from virtualflow.job.history import Watch
from virtualflow.job.status import JobStatus, with_cells

DevicesPeriod = tuple[float, float | None, list[str]]  # from, to, and the devices in between


class FolderView:
    """Looks at a job again and again; each look reads only what was written since the last one."""

    def __init__(self, folder: JobFolder) -> None:
        self.folder = folder
        self.watch = Watch(folder.path / STREAM)
        self._uses = UseReader(folder.path)

    def look(self, now: float) -> tuple[JobView, JobStatus]:
        """The job, and the state that its coordinator or manager has written last."""
        self.watch.read()
        status = with_cells(self.folder.read_state(), self.watch.cells)
        return view_of(self.folder, self.spec(), status, self.watch, now, self._uses.read()), status

    def spec(self) -> JobSpec:
        """The job's; of one whose own can't be read, its id."""
        try:
            return self.folder.spec()
        except (OSError, DamagedError):
            return JobSpec(self.folder.path.name, JobDescription(""), ())


def view_of(folder: JobFolder, spec: JobSpec, status: JobStatus, watch: Watch, now: float, uses: Uses) -> JobView:
    """A job by its *status*, the events that *watch* has read, and what its workers use."""
    is_over = status.state.is_ended
    periods = list(device_periods(watch, ended=is_over))
    started = periods[0][0] if periods else None
    progress = watch.progress(running=not is_over)
    return JobView(
        id=folder.path.name,
        name=spec.description.title,
        script=spec.description.script,
        state=status.state,
        devices=list(status.devices),
        step=progress.step,
        steps=progress.steps,
        loss=progress.loss,
        metrics=progress.metrics,
        examples_per_second=progress.examples_per_second,
        eta_seconds=progress.eta_seconds,
        priority=1.0,
        demand=len(spec.devices),
        want=len(status.wanted or spec.devices),
        min=1,
        cap=None,
        virtual_nodes=status.virtual_nodes,
        stages=watch.cells.stages if watch.cells is not None else None,
        mapping={worker.device: list(worker.virtual_nodes) for worker in status.workers},
        queued_seconds=0.0,
        run_seconds=round(sum((end or now) - begin for begin, end, _ in periods), 1),
        resizes=status.resizes,
        failures=status.failures,
        reason=status.reason,
        corruption=watch.corruption,
        submitted=started or status.launched or now,
        started=started,
        ended=watch.last_time if is_over else None,
        use={} if is_over else {device: uses[device] for device in status.devices if device in uses},
    )


def device_periods(
    watch: Watch, begun: float | None = None, devices: Sequence[str] = (), *, ended: bool
) -> Iterator[DevicesPeriod]:
    """Stretches of time in which a job had the same devices: none while it was stopped.

    With *begun*, its present run has begun then, and has had *devices* since before its first event.
    """
    marks = watch.shapes
    last = watch.last_time
    if begun is not None:
        before = [(at, held) for at, held in watch.shapes if at < begun]
        since = [(begun, tuple(devices)), *((at, held) for at, held in watch.shapes if at >= begun)]
        if before and before[-1][1]:  # the present run has written nothing yet
            before.append((last if last is not None and last < begun else begun, ()))
        marks = [*before, *since]
        last = max(begun, last or begun)
    marks = [mark for place, mark in enumerate(marks) if place == 0 or mark[1] != marks[place - 1][1]]
    ends = [*(at for at, _ in marks[1:]), last if ended else None]
    for (begin, held), end in zip(marks, ends[-len(marks) :] if marks else (), strict=True):
        if held:
            yield begin, end, list(held)
