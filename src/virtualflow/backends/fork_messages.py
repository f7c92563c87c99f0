"""What passes between a backend and its fork server: one message a packet, with descriptors beside a request."""

from __future__ import annotations

from msgspec import Struct
from msgspec.json import Decoder

from virtualflow.core.device_choice import Accelerator
from virtualflow.job.spec import WorkerSpec


class ForkRequest(Struct, frozen=True):
    """Fork a worker; its stdout, stderr and control descriptors come with the packet."""

    worker: WorkerSpec
    environment: dict[str, str]  # what its process has besides the server's


class ServerReady(Struct, frozen=True, tag=True):
    """Torch is loaded."""

    pid: int
    accelerators: tuple[Accelerator, ...] = ()  # that workers will see
    workers: tuple[int, ...] = ()  # that it has forked already, for another coordinator


class WorkerForked(Struct, frozen=True, tag=True):
    """The answer to a request."""

    pid: int


class WorkerEnded(Struct, frozen=True, tag=True):
    pid: int
    code: int  # its exit code, or the negative number of the signal that killed it
    left: tuple[str, ...]  # the commands of what it had started and left behind, which were ended with it


FromServer = ServerReady | WorkerForked | WorkerEnded

FORK_REQUESTS: Decoder[ForkRequest] = Decoder(ForkRequest)
FROM_SERVER: Decoder[FromServer] = Decoder(FromServer)
