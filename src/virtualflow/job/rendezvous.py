"""How workers find each other: a process group for each generation, formed over their lines to the coordinator.

Only the group's own sockets listen, for as long as it lasts. Gloo accepts every connection, so each worker
posts to the others, over the coordinator, between which addresses its connections are, and a group with any other
connection is left before anything is sent over it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import stat
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Self

import torch
from torch import Tensor
from torch import distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from virtualflow.errors import PeerLostError
from virtualflow.job.device_collectives import LIBRARIES, DeviceCollectives

Post = Callable[[str, str, bytes], object]  # a group's name, a key and a value, to the other workers of that group
Endpoints = tuple[str, int, str, int]  # of one connection: here, and there


class PostBox:
    """What the workers of a group post to each other before they are connected.

    A post may come before this worker waits for it.
    """

    def __init__(self, post: Post) -> None:
        self.post = post
        self._values: dict[str, dict[str, bytes]] = defaultdict(dict)  # by the group's name, and by key
        self._news = threading.Condition(threading.RLock())

    def add(self, group: str, key: str, value: bytes) -> None:
        """A worker of *group* has posted a value."""
        with self._news:
            self._values[group][key] = value
            self._news.notify_all()

    def wake(self) -> None:
        """Have those who wait look again whether they still should."""
        with self._news:
            self._news.notify_all()

    def end(self, group: str) -> None:
        """Drop the posts of *group*: no worker waits for them any more."""
        with self._news:
            self._values.pop(group, None)

    def has(self, group: str, keys: Sequence[str]) -> bool:
        with self._news:
            return self._values[group].keys() >= set(keys)

    def wait(self, group: str, keys: Sequence[str], seconds: float, broken: Callable[[], bool]) -> list[bytes]:
        """The values of *keys*, as soon as all were posted; RuntimeError if one is late, or the group is *broken*."""
        with self._news:
            self._news.wait_for(lambda: self.has(group, keys) or broken(), seconds)
            if not self.has(group, keys):
                raise RuntimeError(
                    "a worker was lost meanwhile" if broken() else f"nothing was posted within {seconds:.0f} s"
                )
            return [self._values[group][key] for key in keys]


class LineStore(Store):
    """A group's store, as torch wants one: what is set here is posted to the other workers of the group."""

    def __init__(self, group: str, posts: PostBox, patience_seconds: float, broken: Callable[[], bool]) -> None:
        super().__init__()
        self._group = group
        self._posts = posts
        self._patience_seconds = patience_seconds
        self._broken = broken

    def set(self, key: str, value: bytes | str) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._posts.add(self._group, key, data)
        self._posts.post(self._group, key, data)

    def get(self, key: str) -> bytes:
        return self._posts.wait(self._group, [key], self._patience_seconds, self._broken)[0]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        seconds = timeout.total_seconds() if timeout is not None else self._patience_seconds
        self._posts.wait(self._group, keys, seconds, self._broken)

    def check(self, keys: list[str]) -> bool:
        return self._posts.has(self._group, keys)


class TorchWork:
    """A collective under way, which fails with an error of ours."""

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


class StagedWork(TorchWork):
    """One on copies that lie on the host, of tensors that the group can't reach; ``wait`` copies the result back."""

    def __init__(self, work: Any, tensors: list[Tensor], copies: list[Tensor]) -> None:
        super().__init__(work)
        self._pairs = list(zip(tensors, copies, strict=True))

    def wait(self) -> None:
        super().wait()
        for tensor, copy in self._pairs:
            tensor.copy_(copy)
        self._pairs.clear()  # a second wait must not overwrite what was computed since


class MessageWork(TorchWork):
    """A message between two workers, from or into a copy on the host where they have accelerators.

    A second wait for one of gloo's would block, and close the connection; and none is ever done before the first.
    """

    def __init__(self, work: Any, tensor: Tensor, copy: Tensor, *, arrives: bool) -> None:
        super().__init__(work)
        self._tensor, self._copy = tensor, copy
        self._arrives = arrives and copy is not tensor
        self._is_over = False

    def is_done(self) -> bool:
        return self._is_over

    def wait(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        super().wait()
        if self._arrives:
            self._tensor.copy_(self._copy)


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
        self._before = _connected_sockets()
        self._sockets: set[tuple[int, int]] | None = None  # known once the group is formed
        self._cut = False
        self._works: list[TorchWork] = []
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
            options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            options._devices = [dist.ProcessGroupGloo.create_device(hostname=address, lazy_init=False)]
            options._timeout = self._patience
            self._gloo = dist.ProcessGroupGloo(self._store, self.rank, self.size, options)
            self._sockets = _connected_sockets() - self._before
            self._check_connections(self._sockets)
            self._store.set(f"device/{self.rank}", self._device_type)
            self.device_types = {self._store.get(f"device/{rank}").decode() for rank in range(self.size)}
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

    def _check_connections(self, sockets: set[tuple[int, int]]) -> None:
        """Raise RuntimeError unless each connection is with a worker of the group, which has posted it itself."""
        mine = {ends for descriptor, _ in sockets if (ends := _endpoints(descriptor)) is not None}
        self._store.set(f"connections/{self.rank}", json.dumps(sorted(mine)))
        others = [rank for rank in range(self.size) if rank != self.rank]
        posted = [json.loads(self._store.get(f"connections/{rank}")) for rank in others]
        theirs = [{(peer, port, here, own) for here, own, peer, port in ends} for ends in posted]
        known = set().union(*theirs)
        accepted = {ends for ends in mine if ends[:2] in _listening_addresses()}
        if accepted - known or not all(mine & ends for ends in theirs):
            raise RuntimeError("another process has connected in a worker's place")

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
        return self._kept(lambda: MessageWork(self._gloo.send([copy], to, tag), tensor, copy, arrives=False))

    def receive(self, tensor: Tensor, source: int, tag: int) -> TorchWork:
        copy = tensor if tensor.device.type == "cpu" else torch.empty_like(tensor, device="cpu")
        return self._kept(lambda: MessageWork(self._gloo.recv([copy], source, tag), tensor, copy, arrives=True))

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
        in_time = self._devices.is_idle(
            lambda: not all(_is_connected(*connection) for connection in self._sockets or ())
        )
        if self._cut or not in_time:
            raise PeerLostError("a worker of this job went away or is late, in a collective between devices")

    def cut_connections(self) -> None:
        """Make every collective of this group fail, here and on the peers."""
        self._cut = True
        if (devices := self._devices) is not None:  # another thread may be leaving the group
            devices.abort()
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
        if self._devices is not None:
            self._devices.leave()
        remains = [self._gloo, self._devices]
        self._gloo = self._devices = None
        # Gloo's own threads look up every 10 ms, and taking a group apart waits for two or three of those.
        threading.Thread(target=remains.clear).start()

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
                return TorchWork(collective(self._gloo, tensors))
            if self._devices is not None:
                return TorchWork(self._devices.start(lambda library: collective(library, tensors)))
            copies = [tensor.cpu() for tensor in tensors]
            return StagedWork(collective(self._gloo, copies), tensors, copies)

        return self._kept(start)

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


def _is_connected(descriptor: int, inode: int) -> bool:
    """Whether a socket is still the one that it was, and its peer has not hung up."""
    try:
        if os.fstat(descriptor).st_ino != inode:
            return False
    except OSError:
        return False
    watch = select.poll()
    watch.register(descriptor, select.POLLRDHUP)
    return not watch.poll(0)


def _endpoints(descriptor: int) -> Endpoints | None:
    try:
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            return (*connection.getsockname()[:2], *connection.getpeername()[:2])
    except OSError:  # closed by now: not one of the group's
        return None


def _listening_addresses() -> set[tuple[str, int]]:
    """Where this process listens."""
    return {
        opened.getsockname()[:2]
        for _, _, opened in _internet_sockets()
        if opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    }


def _connected_sockets() -> set[tuple[int, int]]:
    """The descriptors and inodes of this process's connected internet sockets.

    Never a listening one: gloo ends the process if that is touched.
    """
    connected = set()
    for descriptor, inode, opened in _internet_sockets():
        with contextlib.suppress(OSError):
            opened.getpeername()
            connected.add((descriptor, inode))
    return connected


def _internet_sockets() -> Iterator[tuple[int, int, socket.socket]]:
    """This process's internet sockets: descriptor, inode, and a copy to look at."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            status = os.fstat(int(name))
            if not stat.S_ISSOCK(status.st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as opened:
                if opened.family in (socket.AF_INET, socket.AF_INET6):
                    yield int(name), status.st_ino, opened
