"""How workers find each other: a process group for each generation, formed over their lines to the coordinator.

Only the group's own sockets listen, for as long as it lasts. Gloo accepts every connection, so each worker posts
where it listens, and tells each other one, over the coordinator, from which addresses it has connected to it. A group
with any other connection is left before anything is sent over it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Self

import torch
from msgspec import Struct
from msgspec.json import Decoder
from torch import Tensor
from torch import distributed as dist
from torch._C._distributed_c10d import PrefixStore

from virtualflow.core import faults
from virtualflow.errors import PeerLostError
from virtualflow.job.device_collectives import LIBRARIES, DeviceCollectives
from virtualflow.job.group_posts import LineStore, PostBox
from virtualflow.job.group_works import MessageWork, StagedWork, TorchWork
from virtualflow.job.json_lines import decoded, encoded
from virtualflow.job.message_waits import MessageWaits
from virtualflow.job.open_sockets import (
    Opened,
    connected_sockets,
    endpoints,
    is_connected,
    is_open,
    listening_addresses,
    shut_down,
)

Address = tuple[str, int]  # where a socket listens, or comes from


class _Worker(Struct, frozen=True):
    """What each worker of a group posts of itself."""

    device_type: str
    listens: tuple[Address, ...]


_listening = threading.Lock()  # groups may form in several threads of a process, and each has a listener of its own
_WORKERS: Decoder[_Worker] = Decoder(_Worker)
_ADDRESSES: Decoder[list[Address]] = Decoder(list[Address])


class TorchGroup:
    """The workers of one generation: gloo for tensors on a CPU, another library for those on accelerators.

    Where not all workers have the same kind of accelerator, tensors go by way of the hosts. A lost peer raises at once
    only on its neighbours in gloo's ring. ``cut_connections``, from any thread, makes it raise everywhere: nothing that
    torch offers does.
    """

    def __init__(self, name: str, rank: int, size: int, device_type: str = "cpu") -> None:
        """*name* is that of one generation: with leftovers of the last one, forming a group hangs.

        *device_type* is this worker's. Only if all have the same, and none of them a CPU, do their devices connect.
        """
        self.rank, self.size = rank, size
        self.device_types: set[str] = set()  # of all its workers, once it is formed
        self._device_type = device_type
        self._devices: DeviceCollectives | None = None
        self._name = name
        self._before = connected_sockets()
        self._sockets: set[Opened] | None = None  # known once the group is formed
        self._cut = False
        self._works: list[TorchWork] = []
        self._messages = MessageWaits(self._is_closed)
        self._gloo: Any = None

    @property
    def reaches_devices(self) -> bool:
        """Whether tensors can go from accelerator to accelerator."""
        return self._devices is not None

    def form(self, posts: PostBox, address: str, patience_seconds: float) -> None:
        """Find the others by way of *posts*; listen for them at *address* alone."""
        self._patience = timedelta(seconds=patience_seconds)
        self._store = LineStore(self._name, posts, patience_seconds, lambda: self._cut)
        try:
            faults.reach("form group")
            options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            options._timeout = self._patience
            with _listening:
                others_listening = listening_addresses()
                options._devices = [dist.ProcessGroupGloo.create_device(hostname=address, lazy_init=False)]
                here = listening_addresses() - others_listening
            self._store.set(f"worker/{self.rank}", encoded(_Worker(self._device_type, tuple(here))))
            self._gloo = dist.ProcessGroupGloo(self._store, self.rank, self.size, options)
            faults.reach("compare connections")
            workers = [decoded(_WORKERS, self._store.get(f"worker/{rank}")) for rank in range(self.size)]
            self._sockets = self._checked_connections(posts, connected_sockets() - self._before, workers)
            self.device_types = {worker.device_type for worker in workers}
            if len(self.device_types) == 1 and self._device_type in LIBRARIES:
                self._connect_devices(patience_seconds)
        except RuntimeError as error:
            raise PeerLostError(f"could not form the group: {str(error).splitlines()[0]}") from None
        finally:
            posts.end(self._name)
        if self._cut:
            self.cut_connections()

    def _connect_devices(self, patience_seconds: float) -> None:
        store = PrefixStore("devices", self._store)
        self._devices = devices = DeviceCollectives(self._device_type, store, self.rank, self.size, patience_seconds)
        if not self._cut:  # else the thread that cuts connections came before this object existed
            devices.connect()
        if self._cut:
            raise RuntimeError("a worker was lost meanwhile")

    def _checked_connections(self, posts: PostBox, connected: set[Opened], workers: Sequence[_Worker]) -> set[Opened]:
        """Those of the *connected* sockets that are the group's.

        Raises RuntimeError unless each connection that came here is of a worker of the group, which says so itself.
        """
        mine = {ends: opened for opened in connected if (ends := endpoints(opened[0])) is not None}
        here = set(workers[self.rank].listens)
        others = [rank for rank in range(self.size) if rank != self.rank]
        listening = {address: rank for rank in others for address in workers[rank].listens}
        made = {ends: listening[ends[2:]] for ends in mine if ends[2:] in listening}
        told: list[list[Address]] = [[] for _ in workers]
        for ends, rank in made.items():
            told[rank].append(ends[:2])
        posts.post_each(self._name, f"connections/{self.rank}", [encoded(addresses) for addresses in told])
        came: dict[int, set[Address]] = {}  # from where each has connected to this one
        for rank in others:
            addresses = decoded(_ADDRESSES, self._store.get(f"connections/{rank}"))
            came[rank] = set(addresses)
        accepted = {ends[2:]: ends for ends in mine if ends[:2] in here}
        unknown = accepted.keys() - set().union(*came.values())
        reached = {*made.values(), *(rank for rank in others if not came[rank].isdisjoint(accepted))}
        if unknown or reached != set(others):
            raise RuntimeError("another process has connected in a worker's place")
        return {mine[ends] for ends in (*made, *accepted.values())}  # none that the script has opened meanwhile

    def sum(self, tensor: Tensor) -> TorchWork:
        return self._all_reduce(tensor, dist.ReduceOp.SUM)

    def max(self, tensor: Tensor) -> TorchWork:
        return self._all_reduce(tensor, dist.ReduceOp.MAX)

    def gather(self, tensor: Tensor, into: list[Tensor]) -> TorchWork:
        return self._started([*into, tensor], lambda library, tensors: library.allgather([tensors[:-1]], tensors[-1:]))

    def broadcast(self, tensor: Tensor, source: int) -> TorchWork:
        options = dist.BroadcastOptions()
        options.rootRank = source
        return self._started([tensor], lambda library, tensors: library.broadcast(tensors, options))

    def send(self, tensor: Tensor, to: int, tag: int) -> TorchWork:
        copy = tensor if tensor.device.type == "cpu" else tensor.cpu()
        return self._kept(
            lambda: MessageWork(self._gloo.send([copy], to, tag), self._messages, tensor, copy, arrives=False)
        )

    def receive(self, tensor: Tensor, source: int, tag: int) -> TorchWork:
        copy = tensor if tensor.device.type == "cpu" else torch.empty_like(tensor, device="cpu")
        return self._kept(
            lambda: MessageWork(self._gloo.recv([copy], source, tag), self._messages, tensor, copy, arrives=True)
        )

    def exchange(self, outgoing: Tensor, to: Sequence[int], incoming: Tensor, of: Sequence[int]) -> TorchWork:
        options = dist.AllToAllOptions()
        return self._started(
            [incoming, outgoing],
            lambda library, tensors: library.alltoall_base(tensors[0], tensors[1], list(of), list(to), options),
        )

    def settle(self) -> None:
        if self._devices is None:
            return
        # A peer whose patience has ended leaves, and this one's may have begun later: gloo's sockets show it at once.
        in_time = self._devices.is_idle(lambda: not all(is_connected(connection) for connection in self._sockets or ()))
        if self._cut or not in_time:
            raise PeerLostError("a worker of this job went away or is late, in a collective between devices")

    def cut_connections(self) -> None:
        """Make every collective of this group fail, here and on the peers."""
        self._cut = True
        if (devices := self._devices) is not None:  # another thread may be leaving the group
            devices.abort()
        shut_down(self._sockets if self._sockets is not None else connected_sockets() - self._before)

    def break_off(self) -> None:
        """Leave the group, and wait until none of its works can touch a buffer any more."""
        self.cut_connections()
        for work in self._works:
            work.leave()
        self._messages.end()
        if self._devices is not None:
            self._devices.leave()
        given_up = [work for work in self._works if work.is_given_up]
        remains = [self._gloo, self._devices]
        self._gloo = self._devices = None
        self._works.clear()

        def take_apart() -> None:
            for work in given_up:
                work.outlast()
            remains.clear()

        # Gloo's own threads look up every 10 ms, and taking a group apart waits for two or three of those.
        # A work that was given up may never end: the process does not wait for that.
        threading.Thread(target=take_apart, daemon=bool(given_up)).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.break_off()

    def _all_reduce(self, tensor: Tensor, operation: Any) -> TorchWork:
        options = dist.AllreduceOptions()
        options.reduceOp = operation
        return self._started([tensor], lambda library, tensors: library.allreduce(tensors, options))

    def _started(self, tensors: list[Tensor], collective: Callable[[Any, list[Tensor]], Any]) -> TorchWork:
        def start() -> TorchWork:
            if tensors[0].device.type == "cpu":
                return TorchWork(collective(self._gloo, tensors), self._is_closed)
            if self._devices is not None:
                return TorchWork(self._devices.start(lambda library: collective(library, tensors)))
            copies = [tensor.cpu() for tensor in tensors]
            return StagedWork(collective(self._gloo, copies), self._is_closed, tensors, copies)

        return self._kept(start)

    def _is_closed(self) -> bool:
        """Whether gloo has closed all connections."""
        return not any(is_open(opened) for opened in self._sockets or ())

    def _kept(self, start: Callable[[], TorchWork]) -> TorchWork:
        """What *start* has begun, noted for ``break_off``."""
        if self._cut or self._gloo is None:
            raise PeerLostError("the group is broken")
        try:
            work = start()
        except RuntimeError as error:
            raise PeerLostError(f"a worker of this job went away: {str(error).splitlines()[0]}") from None
        self._works = [work, *(w for w in self._works if not w.is_done())]
        return work
