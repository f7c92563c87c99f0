"""Every message between a coordinator, its workers, and the verbs of ``vf``: a line of JSON each, tagged with its type.

What may come over a connection is a union of these types, and its decoder stands at the end of this module.
``Wire`` decodes each line once; no other module parses JSON of it.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct
from msgspec.json import Decoder

from virtualflow.core.generation import Generation
from virtualflow.core.job_view import DeviceUse
from virtualflow.core.standing import Standing
from virtualflow.job.spec import Failure, WorkerSpec
from virtualflow.job.status import JobStatus

Count = Annotated[int, Meta(ge=1)]


class Message(Struct, frozen=True, tag_field="type", tag=str, forbid_unknown_fields=True):
    """One line. The tag is the name of its type."""


class Heartbeat(Message, frozen=True):
    """An empty line: the other end is there."""


# Between workers, by way of the coordinator


class GroupPost(Message, frozen=True):
    """A worker has something for all others of a group that forms."""

    group: str
    key: str
    value: bytes


class GroupLetters(Message, frozen=True):
    """A worker has something else for each worker of a group that forms; *values* go by rank."""

    group: str
    key: str
    values: tuple[bytes, ...]


class GroupPosts(Message, frozen=True):
    """What workers of a group that forms have for the one who gets this; see ``post_office``."""

    group: str
    keys: tuple[str, ...]
    sizes: tuple[int, ...]  # of the values, in bytes
    data: bytes  # the values, one after another, compressed


class EarlyResult(Message, frozen=True):
    """The result of a call that the job made before its first epoch, which workers that join later need, too."""

    call: int  # the number of such calls before this one
    value: str  # JSON of its own: it may be a NaN or an infinity, which messages can't hold


# From a worker: its script


class TrainerMade(Message, frozen=True):
    """The script has made its first Trainer."""

    node_sizes: Annotated[tuple[int, ...], Meta(min_length=1)]
    parameters: int


class FirstLoopLeft(Message, frozen=True):
    """A second Trainer has begun to train: no worker can join its loop."""


class ScriptFinished(Message, frozen=True):
    """The script has come to its end."""


class WorkerFailed(Message, frozen=True):
    """The script has ended with an error."""

    failure: Failure


class ModuleLoaded(Message, frozen=True):
    """The script has imported a module that the job's snapshot lacks."""

    file: str
    name: str
    source: bytes


class FileRead(Message, frozen=True):
    """The script has read a file before its first step."""

    file: str
    digest: str


class FileWritten(Message, frozen=True):
    """The script has written a file."""

    file: str


# From a worker: its part in the membership


class ReadyToJoin(Message, frozen=True):
    """The worker has run the script up to the loop, and waits for the job's state."""


class JoinRefused(Message, frozen=True):
    """The worker can't join; the others go on without it."""

    reason: str


class HoldsState(Message, frozen=True):
    """The worker has received the job's state."""


class FormedGroup(Message, frozen=True):
    """The worker is in the group of a generation."""

    generation: int


class PeerLost(Message, frozen=True):
    """A collective of a generation has failed."""

    generation: int


class Leaving(Message, frozen=True):
    """The worker got a preemption notice."""


class StepTime(Message, frozen=True):
    """How long the worker's virtual nodes took in a step."""

    step: int
    seconds: float
    overran: int  # virtual nodes that took longer than on the device that they emulate
    generation: int


class ResourceUse(Message, frozen=True):
    """What the worker uses of its machine; sent now and then instead of a heartbeat."""

    use: DeviceUse


class VerdictReached(Message, frozen=True):
    """A sentinel has found what a device computed, sent or kept wrongly; each worker but that one's says so."""

    step: int
    device: str  # empty if it is not known
    drained: bool
    text: str


class ShrinkJob(Message, frozen=True):
    """The job itself wants to go on with its first devices alone."""

    devices: Count


class ExchangeWorker(Message, frozen=True):
    """The audit wants one worker to be replaced by a new one."""

    device_type: str


class WorkerReport(Message, frozen=True):
    """What a worker first says to a coordinator that takes over: who it is, and how far it has come."""

    device: str
    standing: Standing
    outputs: tuple[int, ...]  # its own descriptors of the other ends of its stdout and stderr
    server: int  # the process that it was forked from
    resume_from: str | None  # the checkpoint that the job began from


# To a worker


class NewGeneration(Message, frozen=True):
    generation: Generation


class Released(Message, frozen=True):
    """The worker may end: the others no longer need it."""


class AllFinished(Message, frozen=True):
    """Every worker's script has come to its end."""


class NoSuccessor(Message, frozen=True):
    """The coordinator has failed by itself: another one would, too, so the worker is to look for none."""


# The handshake of a worker from another launcher


class Challenge(Message, frozen=True):
    """The job's first message: the worker is to show that it has the token."""

    nonce: str


class TokenProof(Message, frozen=True):
    """The worker's answer, with a challenge of its own."""

    answer: str
    nonce: str
    pid: int = 0


class JobProof(Message, frozen=True):
    """The job's answer to the worker's challenge."""

    answer: str


class WorkAssigned(Message, frozen=True):
    """What the worker is to do, and the files that it needs for that."""

    spec: WorkerSpec
    modules: dict[str, str]


# Verbs and their answers


class GetStatus(Message, frozen=True):
    pass


class ResizeJob(Message, frozen=True):
    """Go on with this many devices."""

    devices: int


class MoveJob(Message, frozen=True):
    """Go on with just these devices."""

    devices: tuple[str, ...]


class StopJob(Message, frozen=True):
    """End the job, with a checkpoint to resume from or without one."""

    checkpoint: bool


class Refusal(Message, frozen=True):
    """What was asked for is not possible."""

    error: str


class StatusReport(Message, frozen=True):
    status: JobStatus


FromWorker = (
    GroupPost
    | GroupLetters
    | EarlyResult
    | TrainerMade
    | FirstLoopLeft
    | ScriptFinished
    | WorkerFailed
    | ModuleLoaded
    | FileRead
    | FileWritten
    | ReadyToJoin
    | JoinRefused
    | HoldsState
    | FormedGroup
    | PeerLost
    | Leaving
    | StepTime
    | ResourceUse
    | VerdictReached
    | ShrinkJob
    | ExchangeWorker
)
ToWorker = GroupPosts | EarlyResult | NewGeneration | Released | AllFinished | NoSuccessor
JobRequest = GetStatus | ResizeJob | MoveJob | StopJob

FROM_WORKER: Decoder[FromWorker] = Decoder(FromWorker)
WORKER_REPORTS: Decoder[WorkerReport] = Decoder(WorkerReport)
TO_WORKER: Decoder[ToWorker] = Decoder(ToWorker)
REQUESTS: Decoder[JobRequest] = Decoder(JobRequest)
ANSWERS: Decoder[StatusReport | Refusal] = Decoder(StatusReport | Refusal)
CHALLENGES: Decoder[Challenge] = Decoder(Challenge)
TOKEN_PROOFS: Decoder[TokenProof] = Decoder(TokenProof)
JOB_PROOFS: Decoder[JobProof] = Decoder(JobProof)
ASSIGNMENTS: Decoder[WorkAssigned | Refusal] = Decoder(WorkAssigned | Refusal)
