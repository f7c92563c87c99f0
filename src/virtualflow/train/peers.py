"""This worker's dealings with the others: who runs what now, and calls that all make together.

A call ends in an *agreement*: a small result that is the same on every worker. Agreements are numbered, over all
Trainers of a process. When a peer is lost in the middle of one, those who have it hand it to those who have not; if
nobody has it, all try again.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from virtualflow.core.mapping import DeviceId
from virtualflow.core.membership import Group, Handover, Membership, Work
from virtualflow.errors import CollectiveError, CoordinatorLostError, PeerLostError

CALLS = ("Trainer", "step", "evaluate", "predict", "save", "export", "load", "the end of an epoch", "end of the script")
_DTYPES = (torch.int64, torch.uint8)


class Peers:
    """The workers of a job as one of them sees them."""

    def __init__(self, membership: Membership) -> None:
        self.membership = membership
        self.agreements = 0
        self.last = torch.zeros(0, dtype=torch.int64)
        self.trainers = 0  # that this process has made
        self.under_way: set[int] = set()  # Trainers, by number, whose loop over epochs runs
        self.keep_at_the_end: Callable[[], None] = lambda: None  # when the script has ended, and nobody is told of it

    @classmethod
    def of(cls, membership: Membership) -> Peers:
        """The one that all Trainers of this process share: two counts of agreements could be taken for each other."""
        if membership.peers is None:
            membership.peers = cls(membership)
        peers: Peers = membership.peers
        return peers

    @property
    def group(self) -> Group | None:
        return self.membership.group

    def nodes(self, virtual_nodes: int) -> tuple[int, ...]:
        """The virtual nodes that this worker runs now, of so many."""
        return self.membership.mapping(virtual_nodes).nodes_of(self.membership.device)

    @property
    def is_lead(self) -> bool:
        return self.membership.devices[0] == self.membership.device

    def announce(self, call: str, number: int = 0, detail: int = 0) -> Pending:
        """Say which call this worker makes; ``check`` the others' before sending anything that belongs to it."""
        group = self.group
        if group is None:
            return Pending(None, [], self.membership)
        mine = torch.tensor([CALLS.index(call), number, detail, self.membership.seen], dtype=torch.int64)
        everyone = [torch.empty_like(mine) for _ in range(group.size)]
        return Pending(group.gather(mine, everyone), everyone, self.membership)

    def announce_end(self) -> None:
        """Let peers that make another call hear that this worker's script has ended."""
        with contextlib.suppress(PeerLostError):
            self.announce("end of the script")

    def agree(self, attempt: Callable[[], Tensor]) -> Tensor:
        """What *attempt* returns, on every worker, through the loss of any of them."""
        while True:
            try:
                result = attempt()
                break
            except PeerLostError:
                missed = self.catch_up()
                if missed is not None:
                    result = missed
                    break
        self.agreements += 1
        self.last = result
        return result

    def change(self, send_state: Handover) -> None:
        """Change to the generation that is due; does not return on a worker that leaves."""
        try:
            self.membership.change(send_state)
        except PeerLostError:
            # Nothing can have been missed but the last agreement, and this worker has that.
            self.catch_up()

    def join(self, receive_state: Handover) -> None:
        """Become part of a job that is under way."""
        try:
            self.membership.join(receive_state)
        except CoordinatorLostError:
            raise
        except PeerLostError:
            self.catch_up()  # as after a change: this worker came with the last agreement

    def gathered(self, call: str, number: int, value: int) -> list[int]:
        """Every worker's *value*, in the order of their ranks."""

        def attempt() -> Tensor:
            self.announce(call, number).check()
            group = self.group
            if group is None:
                return torch.tensor([value])
            everyone = [torch.empty(1, dtype=torch.int64) for _ in range(group.size)]
            group.gather(torch.tensor([value]), everyone).wait()
            return torch.cat(everyone)

        return [int(each) for each in self.agree(attempt)]

    def has_joiners(self, call: str, number: int) -> bool:
        """Whether any worker knows of one that has joined; all get the same answer.

        What each remembers for itself may differ: one that was lost while the group formed is known to some alone.
        """
        return any(self.gathered(call, number, int(any(change.joined for change in self.membership.changes))))

    def exchanged(self, call: str, number: int, value: Any) -> list[Any]:
        """Every worker's *value*, in the order of their ranks: tensors and plain values, of any size."""
        return unpacked(self.agree(lambda: self._exchange(call, number, value)))

    def _exchange(self, call: str, number: int, value: Any) -> Tensor:
        self.announce(call, number).check()
        return gather_packed(value, self.group)

    def from_lead(self, call: str, number: int, value: Callable[[], int], detail: int = 0) -> int:
        """The lead's *value*. If the lead is lost, the next one's."""

        def attempt() -> Tensor:
            self.announce(call, number, detail).check()
            shared = torch.tensor([value() if self.is_lead else 0])
            if self.group is not None:
                self.group.broadcast(shared, 0).wait()
            return shared

        return int(self.agree(attempt))

    def share(self, call: str, tensors: list[Tensor]) -> None:
        """Give every worker the lead's *tensors*."""

        def attempt() -> Tensor:
            self.announce(call).check()
            if self.group is not None:
                for tensor in tensors:
                    self.group.broadcast(tensor.detach(), 0).wait()
            return torch.zeros(0, dtype=torch.int64)

        self.agree(attempt)

    def catch_up(self) -> Tensor | None:
        """Regroup without those who are lost; return the agreement that this worker has missed, if it has."""
        while True:
            try:
                self.membership.recover()
                return self._missed()
            except PeerLostError:
                continue  # another one was lost meanwhile

    def _missed(self) -> Tensor | None:
        group = self.group
        if group is None:
            return None
        last = self.last.contiguous()
        mine = torch.tensor([self.agreements, last.numel(), _DTYPES.index(last.dtype)], dtype=torch.int64)
        everyone = [torch.empty_like(mine) for _ in range(group.size)]
        group.gather(mine, everyone).wait()
        counts = [int(each[0]) for each in everyone]
        if min(counts) == max(counts):
            return None
        ahead = counts.index(max(counts))
        if self.agreements < counts[ahead]:
            last = torch.empty(int(everyone[ahead][1]), dtype=_DTYPES[int(everyone[ahead][2])])
        group.broadcast(last, ahead).wait()
        return last if self.agreements < counts[ahead] else None


class Pending:
    """Calls that were announced and not compared yet."""

    def __init__(self, work: Work | None, calls: list[Tensor], membership: Membership) -> None:
        self._work = work
        self._calls = calls
        self._membership = membership

    def check(self) -> None:
        """Raise an error that names both calls if two workers made different ones."""
        if not self._calls:
            self._membership.all_have_seen(self._membership.seen)
        if self._work is None:
            return
        self._work.wait()
        self._work = None
        first, *others = [tuple(call.tolist()) for call in self._calls]
        devices = self._membership.devices
        for device, call in zip(devices[1:], others, strict=True):
            if call[:3] != first[:3]:
                raise CollectiveError(_advice(devices[0], first, device, call, self._newcomers()))
        # Everyone has this list, so everyone knows the same: which generation all have heard of.
        self._membership.all_have_seen(min(call[3] for call in (first, *others)))

    def _newcomers(self) -> str:
        """Who has not been here from the start, if that can be the cause."""
        joined = sorted({device for change in self._membership.changes for device in change.joined})
        if joined:
            return f"Device(s) {', '.join(joined)} joined while the job ran"
        return "The job was resumed" if self._membership.job.resume_from is not None else ""


def _advice(one: DeviceId, first: tuple[int, ...], other: DeviceId, call: tuple[int, ...], newcomers: str) -> str:
    what = f"device {one} called {_name(first)} while device {other} called {_name(call)}."
    if newcomers:
        return (
            f"{what} {newcomers}: a variable that steers the loop, such as a best score or a count of bad epochs, is "
            "lost on a worker that joins and in a job that resumes, unless the job keeps it. Keep it in progress = "
            "vf.State(best=..., bad=0) and vf.Trainer(..., state=[progress])."
        )
    if first[:2] == call[:2] and CALLS[first[0]] in ("step", "evaluate", "predict"):
        return (
            f"in {CALLS[first[0]]} (global step {first[1]}), devices {one} and {other} have different batches, or "
            "train different parameters. Is the dataset of another length there (a split without a seed, files that "
            "are not the same on every machine), does the sampler give another order, did the script skip a batch or "
            "freeze a layer on one of them?"
        )
    return (
        f"{what} Every worker must make the same calls with the same arguments in the same order: is one of them "
        "behind `if trainer.is_lead`, or does it depend on something that differs by worker?"
    )


def _name(call: tuple[int, ...]) -> str:
    code, number, detail, _ = call
    arguments = f", arguments {detail & 0xFFFF:04x}" if detail else ""
    return f"{CALLS[code]} (global step {number}{arguments})"


def gather_packed(value: Any, group: Group | None) -> Tensor:
    """Every worker's *value* as bytes, one worker's after another's: the length of each, then itself."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    packed = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
    length = torch.tensor([len(packed)])
    if group is None:
        return torch.cat([length.view(torch.uint8), packed])
    lengths = [torch.empty_like(length) for _ in range(group.size)]
    group.gather(length, lengths).wait()
    padded = torch.zeros(max(int(each) for each in lengths), dtype=torch.uint8)
    padded[: len(packed)] = packed
    parts = [torch.empty_like(padded) for _ in range(group.size)]
    group.gather(padded, parts).wait()
    pieces = [(each.view(torch.uint8), part[: int(each)]) for each, part in zip(lengths, parts, strict=True)]
    return torch.cat([piece for pair in pieces for piece in pair])


def unpacked(packed: Tensor) -> list[Any]:
    """What ``gather_packed`` has gathered."""
    contents = packed.numpy().tobytes()
    values = []
    start = 0
    while start < len(contents):
        end = start + 8 + int.from_bytes(contents[start : start + 8], "little")
        values.append(torch.load(io.BytesIO(contents[start + 8 : end]), weights_only=True))
        start = end
    return values
