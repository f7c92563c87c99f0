"""What can happen to a job's membership: the events that ``Roster.handle`` takes."""

from __future__ import annotations

from dataclasses import dataclass

from virtualflow.core.mapping import DeviceId, Mapping
from virtualflow.core.standing import JobStanding


@dataclass(frozen=True, slots=True)
class SizesKnown:
    """The script has made its first Trainer, with virtual nodes of these sizes."""

    node_sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ResizeWanted:
    """The job is to go on with just these devices. The last request wins."""

    devices: tuple[DeviceId, ...]


@dataclass(frozen=True, slots=True)
class ShrinkWanted:
    """The job itself wants to go on with its first *count* devices, and without new ones."""

    count: int


@dataclass(frozen=True, slots=True)
class RemapWanted:
    """Virtual nodes are to move among the same workers, which forms no new group."""

    mapping: Mapping


@dataclass(frozen=True, slots=True)
class StopWanted:
    """All workers are to end at the same step boundary, with a checkpoint."""


@dataclass(frozen=True, slots=True)
class JoiningClosed:
    """The job has left its first loop: a worker that joined from now on would run the script into that loop."""


@dataclass(frozen=True, slots=True)
class WorkerOffered:
    """A worker that another launcher has started wants to take part, and gets ready."""

    device: DeviceId


@dataclass(frozen=True, slots=True)
class DeviceWithdrawn:
    """A device can't be used again: the launcher that started its worker would have to."""

    device: DeviceId


@dataclass(frozen=True, slots=True)
class StartPostponed:
    """A worker could not be started, for no fault of its own: it is not tried again before *until*."""

    device: DeviceId
    until: float


@dataclass(frozen=True, slots=True)
class JoinerReady:
    """A worker that joins has built its model, and waits for the job's state."""

    device: DeviceId


@dataclass(frozen=True, slots=True)
class StateReceived:
    """A worker that joins holds the job's state."""

    device: DeviceId


@dataclass(frozen=True, slots=True)
class GroupFormed:
    """A worker is in the group of generation *number*."""

    device: DeviceId
    number: int


@dataclass(frozen=True, slots=True)
class LossReported:
    """A worker's collective has failed in generation *number*: another worker is gone, or late."""

    device: DeviceId
    number: int


@dataclass(frozen=True, slots=True)
class LeaveNoticed:
    """A worker got a preemption notice, and leaves at the next step boundary."""

    device: DeviceId


@dataclass(frozen=True, slots=True)
class ScriptEnded:
    """A worker's script has come to its end; the worker stays until all have."""

    device: DeviceId


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """A worker's process has ended."""

    device: DeviceId


@dataclass(frozen=True, slots=True)
class JobTakenOver:
    """The job runs already: its coordinator has died, and this is what its workers say. The first event, if it comes.

    *wanted* are the devices that were asked for.
    """

    standing: JobStanding
    wanted: tuple[DeviceId, ...]


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Only time has passed: deadlines may be over."""


RosterEvent = (
    SizesKnown
    | ResizeWanted
    | ShrinkWanted
    | RemapWanted
    | StopWanted
    | JoiningClosed
    | WorkerOffered
    | DeviceWithdrawn
    | StartPostponed
    | JoinerReady
    | StateReceived
    | GroupFormed
    | LossReported
    | LeaveNoticed
    | ScriptEnded
    | WorkerGone
    | JobTakenOver
    | TimePassed
)
