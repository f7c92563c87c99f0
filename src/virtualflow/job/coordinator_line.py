"""A worker's line to its coordinator: a thread keeps what comes, and the training thread waits for it here.

The thread draws no random numbers and touches no tensor. All it does besides keeping messages is to call *on_loss*,
which frees the training thread from the collective of a group that has lost a member.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
from collections.abc import Callable
from typing import TypeVar, assert_never

from virtualflow.core.generation import Cause, Generation
from virtualflow.errors import CoordinatorLostError, MessageError
from virtualflow.job import wire_messages as messages
from virtualflow.job.group_posts import PostBox
from virtualflow.job.lasting_wire import LastingWire
from virtualflow.job.post_office import unpacked
from virtualflow.job.spec import WorkerSpec
from virtualflow.job.successor_search import SuccessorSearch
from virtualflow.job.wire_messages import Heartbeat, Message, ToWorker, WorkerReport

ORPHANED_SECONDS = 1860  # beyond two patiences, for a worker without a coordinator to come to a boundary
NEVER_SECONDS = 10.0**6
T = TypeVar("T")

_log = logging.getLogger("virtualflow")


class CoordinatorLine:
    """What the coordinator has sent so far. ``send`` may be called from any thread, even in a signal handler."""

    def __init__(
        self,
        wire: LastingWire,
        spec: WorkerSpec,
        on_loss: Callable[[], None],
        report: Callable[[], WorkerReport],
        on_end: Callable[[], None],
    ) -> None:
        """*report* is for the next coordinator, if this one dies; *on_end* is called if there is none."""
        self._wire = wire
        self._on_loss = on_loss
        self._report = report
        self._on_end = on_end
        self._search = SuccessorSearch(spec) if spec.may_outlive else None
        self._patience_seconds = spec.patience_seconds
        # A coordinator on this machine can't be cut off, however long it is silent.
        self._silence_seconds = 2 * spec.patience_seconds if spec.is_elsewhere else NEVER_SECONDS
        self._change = threading.Condition()
        self.published: dict[int, Generation] = {}
        self.newest_loss = -1  # the newest generation that was published because of a loss
        self.early_results: list[str] = []  # as JSON, of the calls that the job made before its first epoch
        self.is_released = False
        self.all_finished = False
        self.is_lost = False  # the coordinator is gone, and no other one takes over
        self.posts = PostBox(self.send)

    def open(self) -> None:
        """Keep what comes, from now on."""
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, message: Message) -> None:
        self._wire.send(message)

    def wait_until(self, condition: Callable[[], T | None]) -> T:
        """What *condition* returns as soon as that is not None. Raises CoordinatorLostError if it never will be."""
        with self._change:
            while (value := condition()) is None:
                if self.is_lost:
                    raise CoordinatorLostError("the coordinator of this job is gone")
                self._change.wait()
            return value

    def _read(self) -> None:
        """Until the coordinator is gone, and no other one takes over."""
        self._read_to_the_end()
        while self._search is not None:
            self._wire.is_moving = True
            connection = self._search.find()
            if connection is not None:
                self._wire.move_to(connection, self._report)
            self._wire.is_moving = False
            if connection is None:
                break
            self._read_to_the_end()
        self._on_end()
        with self._change:
            self.is_lost = True
            self._change.notify_all()
        self.posts.wake()
        # The worker leaves a checkpoint at the next boundary; the kernel ends it if its script never comes to one.
        signal.alarm(math.ceil(2 * self._patience_seconds) + ORPHANED_SECONDS)

    def _read_to_the_end(self) -> None:
        try:
            while self._wire.is_readable(self._silence_seconds) and (received := self._wire.receive()) is not None:
                with self._change:
                    for message in received:
                        self._keep(message)
                    self._change.notify_all()
        except MessageError as error:
            _log.warning("the coordinator sent what can't be understood, and counts as gone: %s", error)

    def _keep(self, message: ToWorker | Heartbeat) -> None:
        match message:
            case messages.NewGeneration(new):
                self.published[new.number] = new
                if new.cause == Cause.LOSS:
                    self.newest_loss = new.number
                    self._on_loss()
                    self.posts.wake()
            case messages.GroupPosts(group):
                self.posts.add(group, unpacked(message))
            case messages.EarlyResult():
                self.early_results.append(message.value)
                self._wire.keep(message)
            case messages.Released():
                self.is_released, self._search = True, None
            case messages.AllFinished():
                self.all_finished, self._search = True, None
            case messages.NoSuccessor():
                self._search = None
            case Heartbeat():
                pass
            case _:
                assert_never(message)
