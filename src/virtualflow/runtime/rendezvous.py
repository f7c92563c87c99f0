"""How workers find each other: torch's store, and a process group for each generation."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch import Tensor
from torch import distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from virtualflow.errors import PeerLostError


def host_store(listening: int, port: int) -> TCPStore:
    """Serve the job's store on the bound socket *listening*, and on nothing else."""
    # Handed a socket: by itself the store would listen on every interface.
    return TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listening)


class TorchWork:
    """A collective under way, whose failure is told in our words."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def wait(self) -> None:
        try:
            self._work.wait()
        except RuntimeError as error:
            raise PeerLostError(
                f"a worker of this job went away or is late: {str(error).splitlines()[0]}. If it was only slow, raise "
                "`vf run --patience`."
            ) from error


class TorchGroup:
    """The workers of one generation: gloo for tensors on a CPU, NCCL for those on CUDA devices."""

    def __init__(self, store: Store, generation: int, rank: int, size: int, patience_seconds: float) -> None:
        self.rank, self.size = rank, size
        # A prefix of its own for each generation: with leftovers of the last one, forming a group hangs.
        self._store = PrefixStore(f"generation/{generation}", store)
        self._patience = timedelta(seconds=patience_seconds)
        self._gloo = self._form_gloo()
        self._nccl: Any = None

    def sum(self, tensor: Tensor) -> TorchWork:
        return self._all_reduce(tensor, dist.ReduceOp.SUM)

    def max(self, tensor: Tensor) -> TorchWork:
        return self._all_reduce(tensor, dist.ReduceOp.MAX)

    def gather(self, tensor: Tensor, into: list[Tensor]) -> TorchWork:
        return self._started(lambda: self._backend(tensor).allgather([into], [tensor]))

    def broadcast(self, tensor: Tensor) -> TorchWork:
        options = dist.BroadcastOptions()
        options.rootRank = 0
        return self._started(lambda: self._backend(tensor).broadcast([tensor], options))

    def _all_reduce(self, tensor: Tensor, operation: Any) -> TorchWork:
        options = dist.AllreduceOptions()
        options.reduceOp = operation
        return self._started(lambda: self._backend(tensor).allreduce([tensor], options))

    def _started(self, start: Any) -> TorchWork:
        try:
            return TorchWork(start())
        except RuntimeError as error:
            raise PeerLostError(f"a worker of this job went away: {str(error).splitlines()[0]}") from error

    def _form_gloo(self) -> Any:
        options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1", lazy_init=False)]
        options._timeout = self._patience
        return dist.ProcessGroupGloo(self._store, self.rank, self.size, options)

    def _backend(self, tensor: Tensor) -> Any:
        if not tensor.is_cuda:
            return self._gloo
        if self._nccl is None:
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = self._patience
            self._nccl = dist.ProcessGroupNCCL(PrefixStore("nccl", self._store), self.rank, self.size, options)
        return self._nccl


def join(host: str, port: int, generation: int, rank: int, size: int, patience_seconds: float) -> TorchGroup:
    """Connect to the job's store and form the group of *generation*."""
    try:
        store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=patience_seconds))
        return TorchGroup(store, generation, rank, size, patience_seconds)
    except RuntimeError as error:
        raise PeerLostError(f"could not join the job's group: {str(error).splitlines()[0]}") from error
