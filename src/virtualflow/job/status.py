"""The membership of a job as verbs show it, and as it stands in the job's ``state.json``."""

from __future__ import annotations

from collections.abc import Mapping as MappingType
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from virtualflow.core.cells import Cells
from virtualflow.core.generation import Cause
from virtualflow.core.job_state import JobState
from virtualflow.core.mapping import Mapping
from virtualflow.core.roster import Roster
from virtualflow.job.backend import Place
from virtualflow.job.outcome import Ending
from virtualflow.job.verdict_reports import VerdictReports


class WorkerStatus(Struct, frozen=True):
    """Where a worker of the current generation is, and its virtual nodes.

    Of a model in stages: the virtual nodes of which it runs any stage, and the stages that it holds.
    """

    device: str
    machine: str = ""
    pid: int = 0
    virtual_nodes: tuple[int, ...] = ()
    stages: tuple[int, ...] = ()


class JobStatus(Struct, frozen=True):
    """What ``vf status`` shows of a job's membership, as its coordinator or its manager has written it."""

    state: JobState
    generation: int = 0
    virtual_nodes: int | None = None  # None until the script has made its Trainer
    workers: tuple[WorkerStatus, ...] = ()
    wanted: tuple[str, ...] = ()  # devices
    resizes: int = 0  # this and the other counts: since the job began, over all coordinators
    failures: int = 0
    remaps: int = 0
    overran_waves: int = 0
    asked: bool = False  # whether a verb has asked the job to stop
    preempted: tuple[str, ...] = ()  # devices whose workers got a preemption notice
    lost: bool = False  # whether the job failed through no fault of its script
    reason: str = ""  # the last line of what went wrong
    launched: float = 0.0  # when, as long as no coordinator has written anything
    over: bool = False  # whether a manager knows that the job never runs again
    guests: tuple[str, ...] = ()  # devices whose workers other launchers have started
    drained: tuple[str, ...] = ()  # devices that a sentinel has caught
    corruption: tuple[str, ...] = ()  # what it has found, in words

    @property
    def devices(self) -> tuple[str, ...]:
        """Of its workers."""
        return tuple(worker.device for worker in self.workers)

    def as_json(self) -> dict[str, Any]:
        """Plain values, as they stand in ``state.json``."""
        fields: dict[str, Any] = to_builtins(self)
        return fields


def status_of(
    roster: Roster,
    ending: Ending,
    verdicts: VerdictReports,
    places: MappingType[str, Place],
    counts_before: MappingType[str, int],
    *,
    overran_waves: int,
) -> JobStatus:
    """The status of a job whose workers are at *places*, by device."""
    # What runs now: a resize that is under way has not happened yet, a loss has.
    lost = roster.pending if roster.pending is not None and roster.pending.cause == Cause.LOSS else None
    current = lost or roster.generation
    nodes = Mapping(lost.owners) if lost is not None and lost.owners is not None else roster.mapping
    owned = nodes.by_device() if nodes is not None else {}
    workers = [
        WorkerStatus(device, places[device].machine, places[device].pid, owned.get(device, ()))
        for device in sorted(places.keys() & set(current.devices))
    ]
    return JobStatus(
        state=ending.state or _state_of(roster),
        generation=current.number,
        virtual_nodes=nodes.virtual_nodes if nodes is not None else None,
        workers=tuple(workers),
        wanted=roster.target,
        guests=tuple(sorted(roster.guests)),
        resizes=roster.resizes + counts_before["resizes"],
        failures=roster.failures + counts_before["failures"],
        remaps=roster.remaps + counts_before["remaps"],
        overran_waves=overran_waves + counts_before["overran_waves"],
        asked=ending.was_asked_for,
        preempted=tuple(sorted(ending.preempted)),
        drained=tuple(verdicts.drained),
        corruption=tuple(verdicts.texts),
        lost=ending.is_no_fault_of_the_script,
        reason=ending.reason,
    )


def with_cells(status: JobStatus, cells: Cells | None) -> JobStatus:
    """*status* with what the grid of a model in stages says of its workers, which a coordinator does not know."""
    if cells is None:
        return status
    every = range(cells.stages)
    workers = tuple(
        replace(
            worker,
            virtual_nodes=cells.nodes_of(worker.device, every),
            stages=cells.stages_of(worker.device),
        )
        for worker in status.workers
    )
    return replace(status, workers=workers)


def _state_of(roster: Roster) -> JobState:
    """The state of a job that has not ended."""
    if roster.mapping is None:
        return JobState.STARTING
    return JobState.RUNNING if roster.is_settled else JobState.RESIZING
