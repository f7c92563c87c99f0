"""A worker's part in the membership of its job, without a process, a group or training: messages in, messages out.

It sends what a real worker does, in the same order and of about the same size, so that what a coordinator does with a
thousand of them is what it would do with a thousand processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from virtualflow.core.generation import Cause, Generation
from virtualflow.job.spec import WorkerSpec
from virtualflow.job.wire_messages import (
    FormedGroup,
    GroupLetters,
    GroupPost,
    GroupPosts,
    HoldsState,
    Message,
    NewGeneration,
    PeerLost,
    ReadyToJoin,
    ScriptFinished,
    ToWorker,
    TrainerMade,
)

GLOO_BYTES = 154  # of a worker's post for gloo, and eight for each worker of the group
CONNECTIONS = "connections/"  # what letters are about, and who has written them


class FakeMember:
    """Takes part in a job of *virtual_nodes* virtual nodes; *send* takes its messages to the coordinator."""

    def __init__(self, spec: WorkerSpec, send: Callable[[Message], object], virtual_nodes: int) -> None:
        self.device = spec.device
        self.generation = Generation(0, Cause.START, spec.devices)  # the one that it is in, or is about to be
        self._send = send
        self._virtual_nodes = virtual_nodes
        self._joins = spec.joins
        self._forming: tuple[str, tuple[str, ...]] | None = None  # a group's name and its workers
        self._counts: Counter[tuple[str, bool]] = Counter()  # what has come, by group: letters, and posts
        self._has_written = False  # its letters to those of the group that it forms

    def begin(self) -> None:
        """The worker has started, and runs its script."""
        if self._joins:
            self._send(ReadyToJoin())
        else:
            self._form("generation/0", self.generation.devices)

    def finish(self) -> None:
        """Its script has come to its end."""
        self._send(ScriptFinished())

    def take(self, message: ToWorker) -> None:
        """A message has come."""
        match message:
            case GroupPosts(group, keys):
                letters = sum(key.startswith(CONNECTIONS) for key in keys)
                self._counts[group, True] += letters
                self._counts[group, False] += len(keys) - letters
                self._go_on()
            case NewGeneration(new):
                self._enter(new)
            case _:  # results of early calls, and that it may end
                pass

    def _enter(self, new: Generation) -> None:
        if new.cause == Cause.LOSS and not self._joins:  # its collectives fail
            self._send(PeerLost(self.generation.number))
        takes_part = self.device in (*new.devices, new.sender)
        if new.cause == Cause.STOP or not takes_part or (self._joins and self.device not in new.joining):
            return
        self.generation = new
        self._counts = Counter({place: n for place, n in self._counts.items() if place[0] in _groups(new)})
        if new.cause == Cause.REMAP:
            self._send(FormedGroup(new.number))
        elif new.cause == Cause.RESIZE and new.sender is not None and self.device in new.group(new.handover_name):
            self._form(new.handover_name, new.group(new.handover_name))
        else:
            self._form(new.group_name, new.devices)

    def _form(self, name: str, workers: tuple[str, ...]) -> None:
        self._forming, self._has_written = (name, workers), False
        if len(workers) > 1:
            rank = workers.index(self.device)
            self._send(GroupPost(name, f"worker/{rank}", b'{"device_type":"cpu","listens":[["127.0.0.1",40000]]}'))
            gloo = b"".join(number.to_bytes(8, "little") for number in range(len(workers)))
            self._send(GroupPost(name, f"0/{rank}", rank.to_bytes(GLOO_BYTES, "little") + gloo))
        self._go_on()

    def _go_on(self) -> None:
        """Write letters once all posts have come, and be in the group once all letters have."""
        if self._forming is None:
            return
        name, workers = self._forming
        if len(workers) > 1:
            if not self._has_written and self._counts[name, False] >= 2 * len(workers):
                self._has_written = True
                rank = workers.index(self.device)
                letters = [f'[["127.0.0.1",{40000 + n}]]'.encode() if n > rank else b"[]" for n in range(len(workers))]
                self._send(GroupLetters(name, f"{CONNECTIONS}{rank}", tuple(letters)))
            if not self._has_written or self._counts[name, True] < len(workers) - 1:
                return
        self._forming = None
        self._has_formed(name)

    def _has_formed(self, name: str) -> None:
        new = self.generation
        if name == new.handover_name:
            if self._joins:
                self._joins = False
                self._send(HoldsState())
            if self.device in new.devices:
                self._form(new.group_name, new.devices)
        elif new.number:
            self._send(FormedGroup(new.number))
        else:
            self._send(TrainerMade((1,) * self._virtual_nodes, 10))


def _groups(generation: Generation) -> tuple[str, str]:
    return generation.group_name, generation.handover_name
