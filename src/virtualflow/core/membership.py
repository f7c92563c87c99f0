"""Who takes part in a job, as the training code sees it.

``train`` asks a membership for its mapping and its group, and never knows who answers: ``train.solo`` under
``python script.py``, ``job.member`` under ``vf run``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

from virtualflow.core.job_description import JobDescription
from virtualflow.core.mapping import DeviceId, Mapping
from virtualflow.core.profiled_grid import GridsByProfile
from virtualflow.core.verdicts import SentinelVerdict


class Work(Protocol):
    """A collective under way."""

    def wait(self) -> None: ...


class Group(Protocol):
    """The workers of one generation, joined by a collective library. Tensors are torch's."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def reaches_devices(self) -> bool:
        """Whether tensors go from accelerator to accelerator, and not by way of the hosts."""

    def sum(self, tensor: Any) -> Work: ...
    def max(self, tensor: Any) -> Work: ...
    def gather(self, tensor: Any, into: list[Any]) -> Work: ...
    def broadcast(self, tensor: Any, source: int) -> Work: ...
    def send(self, tensor: Any, to: int, tag: int) -> Work:
        """Give *tensor* to one other worker, which receives one of the same length under the same *tag*.

        It has been given once the other has asked for it; messages under one tag arrive in order.
        """

    def receive(self, tensor: Any, source: int, tag: int) -> Work: ...
    def exchange(self, outgoing: Any, to: Sequence[int], incoming: Any, of: Sequence[int]) -> Work:
        """Send ``to[r]`` bytes of *outgoing* to rank r, one rank's after another's, and receive ``of[r]`` from it."""

    def settle(self) -> None:
        """Wait until no collective is under way on a device; raise PeerLostError if one has ended without its peers.

        Those on the host have ended when they were waited for.
        """


@dataclass(frozen=True, slots=True)
class JobContext:
    """What a worker knows of the job it belongs to."""

    id: str
    folder: Path
    description: JobDescription = JobDescription("")  # noqa: RUF009, frozen
    device_type: str = "cpu"  # torch's word for what this worker's device is
    resume_from: Path | None = None
    mixed: bool = False  # of really different device types, whose kernels round differently
    instruments: Any = None  # around the engine of every Trainer, as train.instruments has them; None for none
    grids: GridsByProfile | None = None  # of cells, if the job has a stage profile
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

    stage_sizes: tuple[tuple[int, int], ...]  # each stage that this worker holds, with its bytes after a step
    peers: Any  # the training code's dealings with the other workers, one for all Trainers; it sees the job to its end

    def mapping(self, virtual_nodes: int) -> Mapping: ...
    def new_trainer(self, number: int, node_sizes: Sequence[int], parameters: int) -> None:
        """This process has made its Trainer of that *number*: 1 for the first."""

    def report_pace(self, step: int, seconds: float, overran: int) -> None:
        """Report how long this worker's virtual nodes took in a step, and how many *overran* their emulated time."""

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

    @property
    def coming(self) -> tuple[DeviceId, ...]:
        """The devices of the generation that is due; if none is, those of the current one."""

    def change(self, send_state: Handover) -> None:
        """Change to the new generation; does not return on a worker that leaves."""

    def exchange(self) -> None:
        """Ask for one worker to be replaced by a new one, as the audit does once."""

    def shrink(self, count: int) -> None:
        """Ask to go on with the first *count* devices: the others leave, and joining is closed."""

    def report_verdict(self, step: int, verdict: SentinelVerdict) -> None:
        """Report what a sentinel has found in *step*; a device that is drained leaves, and gets no worker again."""

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

        Raises PeerLostError if a worker is lost after the state has come: this worker then recovers like the others.
        """

    def record(self, result: Any) -> None:
        """Keep the result of a call made before the first epoch, for workers that join later."""

    def recorded(self) -> Any:
        """What the job's next such call gave."""


Handover = Callable[[Group], None]
