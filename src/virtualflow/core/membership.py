"""Who takes part in a job, as the training code sees it.

``train`` asks a membership for its mapping and its group, and never knows who answers: ``train.solo`` under
``python script.py``, ``job.member`` under ``vf run``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

from virtualflow.core.mapping import DeviceId, Mapping


class Work(Protocol):
    """A collective under way."""

    def wait(self) -> None: ...


class Group(Protocol):
    """The workers of one generation, joined by a collective library. Tensors are torch's."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def sum(self, tensor: Any) -> Work: ...
    def max(self, tensor: Any) -> Work: ...
    def gather(self, tensor: Any, into: list[Any]) -> Work: ...
    def broadcast(self, tensor: Any, source: int) -> Work: ...


@dataclass(frozen=True, slots=True)
class JobContext:
    """What a worker knows of the job it belongs to."""

    id: str
    folder: Path
    audit: bool = False
    threads_per_device: int = 1
    device_type: str = "cpu"
    checkpoint_every: int = 0  # steps; 0 for never
    resume_from: Path | None = None
    node_sizes: tuple[int, ...] | None = None  # a plan's, instead of the script's
    mixed: bool = False  # of really different device types, whose kernels round differently
    any_batch: bool = False  # node_sizes count, whatever batch size the script has
    instruments: Any = None  # around the engine of every Trainer, as train.instruments has them; None for none
    program_facts: Callable[[], dict[str, Any]] | None = None  # of the code that it runs, for the certificate


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the membership, and how long it made this worker stand still: on what, in milliseconds."""

    generation: int
    cause: str
    devices: tuple[DeviceId, ...]
    joined: tuple[DeviceId, ...]
    left: tuple[DeviceId, ...]
    pause_ms: dict[str, float]


class Membership(Protocol):
    """The job, this worker's device, and who else takes part: all of it may change between two steps."""

    @property
    def job(self) -> JobContext: ...
    @property
    def device(self) -> DeviceId: ...
    @property
    def devices(self) -> tuple[DeviceId, ...]:
        """The devices of the current generation; the first one's worker is the lead."""

    @property
    def group(self) -> Group | None:
        """The workers of the current generation; None for one that is alone."""

    @property
    def generation(self) -> int: ...
    @property
    def changes(self) -> list[Change]:
        """The generations that this worker has changed to."""

    peers: Any  # the training code's dealings with the other workers, one for all Trainers; it sees the job to its end

    def mapping(self, virtual_nodes: int) -> Mapping: ...
    def new_trainer(self, number: int, node_sizes: Sequence[int], parameters: int) -> None:
        """This process has made its Trainer of that *number*: 1 for the first."""

    def tell_pace(self, step: int, seconds: float, overran: int) -> None:
        """This worker's virtual nodes took so long in a step; so many took longer than the device that they emulate."""

    def begin_training(self) -> bool:
        """A Trainer is about to make its first step; return whether it is the script's first to do so.

        Only that one's loop can be joined, and resumed in the middle: those who do run the script from the top.
        """

    @property
    def seen(self) -> int:
        """The newest generation that this worker has received."""

    def all_have_seen(self, generation: int) -> None:
        """Every worker has received *generation*, and every worker knows that by now."""

    @property
    def change_is_due(self) -> bool:
        """Whether the next step boundary is the one at which all change to a new generation."""

    def change(self, send_state: Handover) -> None:
        """Change to the new generation; does not return on a worker that leaves."""

    def exchange(self) -> None:
        """Ask for one worker to be replaced by a new one, as the audit does once."""

    def shrink(self, count: int) -> None:
        """Ask for the first *count* devices alone to go on: the others leave, and nobody may join any more."""

    @property
    def must_stop(self) -> bool:
        """Whether the job is to end at the next boundary, with a checkpoint to go on from."""

    @property
    def orphaned(self) -> bool:
        """Whether it must stop because the coordinator is gone, as all who are left know."""

    def stop(self) -> NoReturn:
        """End this worker; the checkpoint is written."""

    def leave_early(self) -> None:
        """Outside of a step: end now if this worker got a preemption notice, and the others know that it leaves."""

    def recover(self) -> None:
        """A peer was lost: wait for the generation without it, and form its group.

        If the coordinator is gone, too, one worker returns, alone, and the others end here.
        """

    @property
    def joining(self) -> bool:
        """Whether this worker runs the script to catch up with a job under way."""

    def join(self, receive_state: Handover) -> None:
        """Wait for the generation that includes this worker; return with the job's state.

        Raises PeerLostError if somebody is lost after the state has come: this worker then recovers like the others.
        """

    def record(self, result: Any) -> None:
        """Keep the result of a call made before the first epoch, for workers that join later."""

    def recorded(self) -> Any:
        """What the job's next such call gave."""


Handover = Callable[[Group], None]
