"""A job as its folder shows it: what ``vf status`` prints, and the page of ``vf run --dashboard``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from virtualflow.core.job_state import JobState
from virtualflow.core.job_view import JobView
from virtualflow.errors import DamagedError
from virtualflow.events import STREAM
from virtualflow.job.folder import JobFolder, JobSpec
from virtualflow.job.history import Watch
from virtualflow.job.job_description import JobDescription

Period = tuple[float, float | None, list[str]]  # from, to, and the devices in between


class FolderView:
    """Looks at a job again and again; each look reads only what was written since the last one."""

    def __init__(self, folder: JobFolder) -> None:
        self.folder = folder
        self.watch = Watch(folder.path / STREAM)

    def look(self, now: float) -> tuple[JobView, dict[str, Any]]:
        """The job, and the state that its coordinator or manager has written last."""
        self.watch.read()
        state = self.folder.read_state()
        return view_of(self.folder, self.spec(), state, self.watch, now), state

    def spec(self) -> JobSpec:
        """The job's; of one whose own can't be read, its id."""
        try:
            return self.folder.spec()
        except (OSError, DamagedError):
            return JobSpec(self.folder.path.name, JobDescription(""), ())


def view_of(folder: JobFolder, spec: JobSpec, state: dict[str, Any], watch: Watch, now: float) -> JobView:
    """A job by its *state* and the events that *watch* has read."""
    known = JobState(state["state"]) if state["state"] in list(JobState) else JobState.UNKNOWN
    is_over = known.is_ended
    periods = list(device_periods(watch, ended=is_over))
    started = periods[0][0] if periods else None
    progress = watch.progress(running=not is_over)
    workers, wanted = state["workers"], state.get("wanted")
    return JobView(
        id=folder.path.name,
        name=spec.description.title,
        script=spec.script,
        state=known,
        devices=[worker["device"] for worker in workers],
        step=progress.step,
        steps=progress.steps,
        loss=progress.loss,
        examples_per_second=progress.examples_per_second,
        eta_seconds=progress.eta_seconds,
        priority=1.0,
        demand=len(spec.devices),
        want=len(wanted) if isinstance(wanted, list) else len(spec.devices),
        min=1,
        cap=None,
        virtual_nodes=state.get("virtual_nodes"),
        mapping={worker["device"]: worker.get("virtual_nodes", []) for worker in workers},
        queued_seconds=0.0,
        run_seconds=round(sum((end or now) - begin for begin, end, _ in periods), 1),
        resizes=state.get("resizes", 0),
        failures=state.get("failures", 0),
        reason=state.get("reason", ""),
        submitted=started or state.get("launched", now),
        started=started,
        ended=watch.last_time if is_over else None,
    )


def device_periods(
    watch: Watch, begun: float | None = None, devices: Sequence[str] = (), *, ended: bool
) -> Iterator[Period]:
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
