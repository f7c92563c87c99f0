"""How workers find each other: a process group for each generation, formed over their lines to the coordinator.

Nothing listens but the group's own sockets, for as long as it lasts. Gloo lets in whoever connects, so each worker
posts to the others, over the coordinator, between which addresses its connections are, and a group with any other
connection is left before anything is sent over it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Self

from torch import Tensor
from torch import distributed as dist
from torch._C._distributed_c10d import Store

from virtualflow.errors import PeerLostError

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
        """Nobody will wait for a post of *group* any more."""
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


class TorchGroup:
    """The workers of one generation: gloo for tensors on a CPU, NCCL for those on CUDA devices.

    A lost peer raises at once only on its neighbours in the ring. ``cut_connections``, from any thread, makes it raise
    everywhere: nothing that torch offers does.
    """

    def __init__(self, name: str, rank: int, size: int) -> None:
        """*name* is that of one generation: with leftovers of the last one, forming a group hangs."""
        self.rank, self.size = rank, size
        self._name = name
        self._before = _connected_sockets()
        self._sockets: set[tuple[int, int]] | None = None  # known once the group is formed
        self._cut = False
        self._works: list[TorchWork] = []
        self._gloo: Any = None
        self._nccl: Any = None

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
        except RuntimeError as error:
            raise PeerLostError(f"could not form the group: {str(error).splitlines()[0]}") from None
        finally:
            posts.end(self._name)
        if self._cut:
            self.cut_connections()

    def _check_connections(self, sockets: set[tuple[int, int]]) -> None:
        """Raise RuntimeError unless each connection is with a worker of the group, which has posted it itself."""
        mine = {ends for descriptor, _ in sockets if (ends := _endpoints(descriptor)) is not None}
        self._store.set(f"connections/{self.rank}", json.dumps(sorted(mine)))
        others = [rank for rank in range(self.size) if rank != self.rank]
        posted = [json.loads(self._store.get(f"connections/{rank}")) for rank in others]
        theirs = [{(there, port, here, own) for here, own, there, port in ends} for ends in posted]
        known = set().union(*theirs)
        accepted = {ends for ends in mine if ends[:2] in _listening_addresses()}
        if accepted - known or not all(mine & ends for ends in theirs):
            raise RuntimeError("somebody else has connected in a worker's place")

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
            self._nccl = dist.ProcessGroupNCCL(self._store, self.rank, self.size, options)
        return self._nccl


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
    found = set()
    for descriptor, inode, opened in _internet_sockets():
        with contextlib.suppress(OSError):
            opened.getpeername()
            found.add((descriptor, inode))
    return found


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
