"""Loading shards ahead of their use, in processes that have the dataset as it was when they were forked.

What they can't load, for whatever reason, is loaded by whoever asked: a process that fails or dies costs time, no more.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from queue import SimpleQueue
from typing import Any

from torch.utils.data._utils import worker as torch_worker

from virtualflow.core.sharding import Indices
from virtualflow.system.processes import die_with_parent
from virtualflow.train.seeding import pin_threads

logger = logging.getLogger("virtualflow")

DEPTH = 2  # shards under way for each process: one that is loaded, one that is loading
_fork = multiprocessing.get_context("fork")
Key = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Request:
    """The shard of one virtual node in one attempt at a step."""

    epoch: int
    step: int
    virtual_node: int
    attempt: int
    indices: Indices

    @property
    def key(self) -> Key:
        return (self.epoch, self.step, self.virtual_node, self.attempt)

    @property
    def at(self) -> tuple[int, int]:
        return (self.epoch, self.step)


class Announced:
    """Which shards will be asked for next: what was announced, and in a replay those of the step once more."""

    def __init__(self, requests: Iterable[Request] = ()) -> None:
        self._requests = iter(requests)
        self._at = (-1, -1)
        self._handed: list[Request] = []  # in this step, in their order
        self._again: deque[Request] = deque()
        self.exhausted = False

    def taking(self, request: Request) -> bool:
        """*request* is asked for now; whether it is the first of its step."""
        first = request.at != self._at
        if first:
            self._at, self._handed = request.at, []
        self._again = deque(other for other in self._again if not first and other.key != request.key)
        nodes = [other.virtual_node for other in self._handed]
        if request.virtual_node in nodes:  # a replay: the others will be asked for again too
            place = nodes.index(request.virtual_node)
            self._again = deque(replace(other, attempt=request.attempt) for other in self._handed[place + 1 :])
            del self._handed[place:]
        self._handed.append(request)
        return first

    def again(self) -> Request | None:
        """The next shard of a replay."""
        return self._again.popleft() if self._again else None

    def next(self) -> Request | None:
        """The next shard that has not been asked for; batches that the script has skipped are left out."""
        handed = {other.virtual_node for other in self._handed}
        for request in self._requests:
            if request.at > self._at or (request.at == self._at and request.virtual_node not in handed):
                return request
        self.exhausted = True
        return None


@dataclass(frozen=True, slots=True)
class _RequestedShard:
    process: LoaderProcess
    ticket: int
    again: bool


class Ahead:
    """Keeps *processes* loader processes busy with the shards that come next.

    *by_node* has each virtual node's shards loaded by one and the same process, where the others would have to read
    what is not theirs.
    """

    def __init__(
        self, load: Callable[[Request], Any], processes: int, announced: Announced, *, by_node: bool = False
    ) -> None:
        self._load = load
        self._by_node = by_node
        # A stream that asks which process it is in must not leave out what it takes for the part of others.
        places = [(0, 1) if by_node else (number, processes) for number in range(processes)]
        self._processes = [LoaderProcess(load, number, of) for number, of in places]
        self._asked: dict[Key, _RequestedShard] = {}
        self._announced = announced
        self._fill()

    def announce(self, announced: Announced) -> None:
        """Go on with *announced*; what was fetched for an earlier announcement is dropped."""
        self._announced = announced
        self._drop(self._asked)
        self._fill()

    def take(self, request: Request, patience_seconds: float | None) -> Any:
        """The shard, or None if the caller has to load it. The request has been given to ``Announced`` before."""
        self._drop([key for key in self._asked if key[:2] < request.at])
        self._fill()
        asked = self._asked.pop(request.key, None)
        if asked is None and self._by_node and self._processes:  # the first of a replay, which the process still has
            process = self._process_for(request)
            asked = _RequestedShard(process, process.ask(request), again=True)
        shard = asked.process.answer(asked.ticket, patience_seconds) if asked is not None else None
        if asked is not None and shard is None:
            self._leave_out(asked.process)
        self._fill()
        return shard

    @property
    def works(self) -> bool:
        """Whether any process is left."""
        return bool(self._processes)

    @property
    def under_way(self) -> int:
        """How many shards were asked for and not taken."""
        return len(self._asked)

    def end(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.end()
        self._processes = []
        self._asked.clear()

    def _fill(self) -> None:
        for again, source in ((True, self._announced.again), (False, self._announced.next)):
            under_way = sum(asked.again == again for asked in self._asked.values())
            while under_way < DEPTH * len(self._processes) and (request := source()) is not None:
                process = self._process_for(request)
                self._asked[request.key] = _RequestedShard(process, process.ask(request), again)
                under_way += 1

    def _process_for(self, request: Request) -> LoaderProcess:
        if self._by_node:
            return self._processes[request.virtual_node % len(self._processes)]
        return min(self._processes, key=lambda process: process.under_way)

    def _drop(self, keys: Iterable[Key]) -> None:
        for key in list(keys):
            asked = self._asked.pop(key)
            asked.process.forget(asked.ticket)

    def _leave_out(self, process: LoaderProcess) -> None:
        if process.broken:
            process.end()
            self._processes.remove(process)
            self._asked = {key: asked for key, asked in self._asked.items() if asked.process is not process}


class LoaderProcess:
    """A forked process that loads one shard after another."""

    def __init__(self, load: Callable[[Request], Any], number: int, of: int) -> None:
        self._here, far_end = _fork.Pipe()
        # Until the process has its own: a signal that arrives earlier would find the parent's handlers.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        try:
            self._process = _fork.Process(target=_serve, args=(load, far_end, os.getpid(), number, of), daemon=True)
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        far_end.close()
        self._end = weakref.finalize(self, _end, self._process, self._here, os.getpid())
        self._tickets = 0
        self._wanted: set[int] = set()
        self._arrived: dict[int, Any] = {}
        self.broken = False

    @property
    def under_way(self) -> int:
        return len(self._wanted)

    def ask(self, request: Request) -> int:
        """Have *request* loaded; the ticket is for ``answer``."""
        self._tickets += 1
        self._wanted.add(self._tickets)
        try:
            self._here.send((self._tickets, request))
        except OSError:
            self.broken = True
        return self._tickets

    def forget(self, ticket: int) -> None:
        self._wanted.discard(ticket)
        self._arrived.pop(ticket, None)

    def answer(self, ticket: int, patience_seconds: float | None) -> Any:
        """What was loaded, or None: an error of the dataset, or of this process, which is then broken."""
        deadline = None if patience_seconds is None else time.monotonic() + patience_seconds
        try:
            while ticket not in self._arrived:
                if deadline is not None and not self._here.poll(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError(f"no answer within {patience_seconds:.0f} s")
                number, shard = self._here.recv()
                if number in self._wanted:
                    self._arrived[number] = shard
        except Exception as error:  # whatever unpickling may raise, too
            self.broken = True
            logger.warning("a loader process failed (%s): its shards are loaded in the training thread", error)
            return None
        self._wanted.discard(ticket)
        return self._arrived.pop(ticket)

    def end(self) -> None:
        self._end()


def _end(process: ForkProcess, connection: Connection, owner: int) -> None:
    if os.getpid() == owner:  # not in another process that was forked meanwhile
        process.kill()
        process.join()
        connection.close()


def _serve(load: Callable[[Request], Any], connection: Connection, parent: int, number: int, of: int) -> None:
    die_with_parent()
    if os.getppid() != parent:
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a worker's own handler is not for its helpers
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the parent's business
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
    pin_threads(1)
    # For datasets that ask torch.utils.data.get_worker_info() whether they are in a process of their own.
    torch_worker._worker_info = torch_worker.WorkerInfo(number, of, 0, getattr(load, "dataset", None))  # type: ignore[arg-type]
    waiting: SimpleQueue[tuple[int, Request]] = SimpleQueue()
    # Read in a thread: neither side may wait for the other to read while the other waits for it.
    threading.Thread(target=_receive, args=(connection, waiting), daemon=True).start()
    while True:
        ticket, request = waiting.get()
        try:
            shard = load(request)
        except Exception:
            shard = None  # whoever asked loads it again and meets the error where it can be seen
        try:
            connection.send((ticket, shard))
        except BrokenPipeError:
            os._exit(0)
        except Exception:  # it can't travel
            connection.send((ticket, None))


def _receive(connection: Connection, waiting: SimpleQueue[tuple[int, Request]]) -> None:
    try:
        while True:
            waiting.put(connection.recv())
    except (EOFError, OSError):
        os._exit(0)
