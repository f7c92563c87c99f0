"""Workers as threads: collectives without processes."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any

from virtualflow.errors import PeerLostError

Messages = defaultdict[tuple[int, int, int], SimpleQueue[Any]]  # by sender, receiver and tag


class ThreadMessage:
    """A message that is to come from another thread."""

    def __init__(self, queue: SimpleQueue[Any], into: Any, meeting: threading.Barrier) -> None:
        self._queue = queue
        self._into = into
        self._meeting = meeting

    def wait(self) -> None:
        while not self._meeting.broken:
            with contextlib.suppress(Empty):
                self._into.copy_(self._queue.get(timeout=0.1))
                return
        raise PeerLostError("a thread of the group is lost")


class ThreadGroup:
    """A group whose workers are threads of this process: what gloo does between processes, in the same order.

    ``ThreadGroup.of(n)`` makes the *n* members. ``lose`` is the death of one: the others get PeerLostError.
    """

    def __init__(self, rank: int, size: int, meeting: threading.Barrier, slots: list[Any], messages: Messages) -> None:
        self.rank = rank
        self.size = size
        self._meeting = meeting
        self._slots = slots
        self._messages = messages

    @classmethod
    def of(cls, size: int, patience_seconds: float = 120.0) -> list[ThreadGroup]:
        meeting, slots = threading.Barrier(size, timeout=patience_seconds), [None] * size
        messages: Messages = defaultdict(SimpleQueue)
        return [cls(rank, size, meeting, slots, messages) for rank in range(size)]

    def sum(self, tensor: Any) -> ThreadGroup:
        first, *others = self._exchange(tensor)
        for other in others:
            first = first + other
        tensor.copy_(first)
        return self

    def max(self, tensor: Any) -> ThreadGroup:
        first, *others = self._exchange(tensor)
        for other in others:
            first = first.maximum(other)
        tensor.copy_(first)
        return self

    def gather(self, tensor: Any, into: list[Any]) -> ThreadGroup:
        for target, value in zip(into, self._exchange(tensor), strict=True):
            target.copy_(value)
        return self

    def broadcast(self, tensor: Any, source: int) -> ThreadGroup:
        tensor.copy_(self._exchange(tensor)[source])
        return self

    def send(self, tensor: Any, to: int, tag: int) -> ThreadGroup:
        self._messages[self.rank, to, tag].put(tensor.clone())
        return self

    def receive(self, tensor: Any, source: int, tag: int) -> ThreadMessage:
        return ThreadMessage(self._messages[source, self.rank, tag], tensor, self._meeting)

    def exchange(self, outgoing: Any, to: Sequence[int], incoming: Any, of: Sequence[int]) -> ThreadGroup:
        everyone = self._exchange((outgoing, tuple(to)))
        place = 0
        for (theirs, lengths), length in zip(everyone, of, strict=True):
            start = sum(lengths[: self.rank])
            assert lengths[self.rank] == length, "a message of another length than the one that is expected"
            incoming[place : place + length] = theirs[start : start + length]
            place += length
        return self

    reaches_devices = False

    def settle(self) -> None:
        """Nothing is ever under way."""

    def wait(self) -> None:
        """A call has ended when it returns."""

    def lose(self) -> None:
        self._meeting.abort()

    def _exchange(self, tensor: Any) -> list[Any]:
        try:
            self._slots[self.rank] = (tensor[0].clone(), tensor[1]) if isinstance(tensor, tuple) else tensor.clone()
            self._meeting.wait()
            everyone = list(self._slots)
            self._meeting.wait()  # no thread puts in the next value before all have taken this one
        except threading.BrokenBarrierError as error:
            raise PeerLostError("a thread of the group is lost") from error
        return everyone


def run_together(*workers: Callable[[], Any]) -> list[Any]:
    """Run *workers* as threads; return what each returned, or raise what the first of them raised."""
    with ThreadPoolExecutor(len(workers)) as pool:
        running = [pool.submit(worker) for worker in workers]
    return [worker.result() for worker in running]
