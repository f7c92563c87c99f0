"""How workers find each other: torch's store, and a process group for each generation."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn, Self

from torch import Tensor
from torch import distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from virtualflow.core.processes import die_with_parent
from virtualflow.errors import PeerLostError


def host_store(listening: int, port: int) -> TCPStore:
    """Serve the job's store on the bound socket *listening*, and on nothing else."""
    with socket.socket(fileno=os.dup(listening)) as bound:
        host = bound.getsockname()[0]  # where it connects to itself: elsewhere it would give up, and end
    # Handed a socket: by itself the store would listen on every interface.
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening)


def serve_store(listening: int, port: int) -> NoReturn:
    """Host the job's store until killed."""
    _store = host_store(listening, port)
    while True:
        signal.pause()


class TorchWork:
    """A collective under way, whose failure is told in our words."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def is_done(self) -> bool:
        return bool(self._work.is_completed())

    def wait(self) -> None:
        try:
            self._work.wait()
        except RuntimeError as error:
            raise PeerLostError(
                f"a worker of this job went away or is late: {str(error).splitlines()[0]}. If it was only slow, raise "
                "`vf run --patience`."
            ) from None


class TorchGroup:
    """The workers of one generation: gloo for tensors on a CPU, NCCL for those on CUDA devices.

    A lost peer raises at once only on its neighbours in the ring. ``cut_connections``, from any thread, makes it raise
    everywhere: nothing that torch offers does.
    """

    def __init__(self, prefix: str, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        # A prefix of its own for each generation: with leftovers of the last one, forming a group hangs.
        self._prefix = prefix
        self._before = _connected_sockets()
        self._sockets: set[tuple[int, int]] | None = None  # known once the group is formed
        self._cut = False
        self._works: list[TorchWork] = []
        self._gloo: Any = None
        self._nccl: Any = None

    def form(self, host: str, port: int, address: str, patience_seconds: float) -> None:
        """Meet the others by way of the store at *host*; listen for them at *address* alone."""
        self._patience = timedelta(seconds=patience_seconds)
        try:
            store = TCPStore(host, port, is_master=False, timeout=self._patience)
            self._store = PrefixStore(self._prefix, store)
            options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            options._devices = [dist.ProcessGroupGloo.create_device(hostname=address, lazy_init=False)]
            options._timeout = self._patience
            self._gloo = dist.ProcessGroupGloo(self._store, self.rank, self.size, options)
        except RuntimeError as error:
            raise PeerLostError(f"could not form the group: {str(error).splitlines()[0]}") from None
        self._sockets = _connected_sockets() - self._before
        if self._cut:
            self.cut_connections()

    def sum(self, tensor: Tensor) -> TorchWork:
        return self._all_reduce(tensor, dist.ReduceOp.SUM)

    def max(self, tensor: Tensor) -> TorchWork:
        return self._all_reduce(tensor, dist.ReduceOp.MAX)

    def gather(self, tensor: Tensor, into: list[Tensor]) -> TorchWork:
        return self._started(lambda: self._backend(tensor).allgather([into], [tensor]))

    def broadcast(self, tensor: Tensor, source: int) -> TorchWork:
        options = dist.BroadcastOptions()
        options.rootRank = source
        return self._started(lambda: self._backend(tensor).broadcast([tensor], options))

    def cut_connections(self) -> None:
        """Make every collective of this group fail, here and on the peers."""
        self._cut = True
        ours = self._sockets if self._sockets is not None else _connected_sockets() - self._before
        # A descriptor's number may be another socket's by now, even a listening one's.
        for descriptor, _ in ours & _connected_sockets():
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
                connection.shutdown(socket.SHUT_RDWR)

    def break_off(self) -> None:
        """Leave the group, and wait until none of its works can touch a buffer any more."""
        self.cut_connections()
        for work in self._works:
            with contextlib.suppress(PeerLostError):
                work.wait()
        self._works.clear()
        remains = [self._gloo, self._nccl]
        self._gloo = self._nccl = None
        # Gloo's own threads look up every 10 ms, and taking a group apart waits for two or three of those.
        threading.Thread(target=remains.clear).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.break_off()

    def _all_reduce(self, tensor: Tensor, operation: Any) -> TorchWork:
        options = dist.AllreduceOptions()
        options.reduceOp = operation
        return self._started(lambda: self._backend(tensor).allreduce([tensor], options))

    def _started(self, start: Callable[[], Any]) -> TorchWork:
        if self._cut or self._gloo is None:
            raise PeerLostError("the group is broken")
        try:
            work = TorchWork(start())
        except RuntimeError as error:
            raise PeerLostError(f"a worker of this job went away: {str(error).splitlines()[0]}") from None
        self._works = [work, *(w for w in self._works if not w.is_done())]
        return work

    def _backend(self, tensor: Tensor) -> Any:
        if not tensor.is_cuda:
            return self._gloo
        if self._nccl is None:
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = self._patience
            self._nccl = dist.ProcessGroupNCCL(PrefixStore("nccl", self._store), self.rank, self.size, options)
        return self._nccl


def _connected_sockets() -> set[tuple[int, int]]:
    """The descriptors and inodes of this process's connected internet sockets.

    Never a listening one: gloo ends the process if that is touched.
    """
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError, ValueError):
            descriptor = int(name)
            status = os.fstat(descriptor)
            if not stat.S_ISSOCK(status.st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.getpeername():
                    found.add((descriptor, status.st_ino))
    return found


if __name__ == "__main__":  # python -m virtualflow.runtime.rendezvous DESCRIPTOR PORT
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the coordinator's business
    serve_store(int(sys.argv[1]), int(sys.argv[2]))
