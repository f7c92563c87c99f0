"""This worker's dealings with the others: who runs what now, and calls that all make together.

A call ends in an *agreement*: a small result that is the same on every worker. Agreements are numbered. When a peer is
lost in the middle of one, those who have it hand it to those who have not; if nobody has it, all try again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
from torch import Tensor

from virtualflow.core.mapping import DeviceId
from virtualflow.core.membership import Group, Handover, Membership, Work
from virtualflow.errors import CollectiveError, CoordinatorLostError, PeerLostError

CALLS = ("Trainer", "step", "evaluate", "predict", "save", "export", "load", "the end of an epoch", "end of the script")
_DTYPES = (torch.int64, torch.uint8)


class Peers:
    """The workers of a job as one of them sees them."""

    def __init__(self, membership: Membership, virtual_nodes: int) -> None:
        self.membership = membership
        self._virtual_nodes = virtual_nodes
        self.agreements = 0
        self.last = torch.zeros(0, dtype=torch.int64)

    @property
    def group(self) -> Group | None:
        return self.membership.group

    @property
    def nodes(self) -> tuple[int, ...]:
        """The virtual nodes that this worker runs now."""
        return self.membership.mapping(self._virtual_nodes).nodes_of(self.membership.device)

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
            except CoordinatorLostError:
                raise
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
            except CoordinatorLostError:
                raise
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
                raise CollectiveError(_advice(devices[0], first, device, call))
        # Everyone has this list, so everyone knows the same: which generation all have heard of.
        self._membership.all_have_seen(min(call[3] for call in (first, *others)))


def _advice(one: DeviceId, first: tuple[int, ...], other: DeviceId, call: tuple[int, ...]) -> str:
    if first[:2] == call[:2] and CALLS[first[0]] in ("step", "evaluate", "predict"):
        return (
            f"in {CALLS[first[0]]} (global step {first[1]}), devices {one} and {other} have different batches. Is the "
            "dataset of another length there (a split without a seed, files that are not the same on every machine), "
            "does the sampler give another order, or did the script skip a batch on one of them?"
        )
    return (
        f"device {one} called {_name(first)} while device {other} called {_name(call)}. Every worker must make the "
        "same calls with the same arguments in the same order: is one of them behind `if trainer.is_lead`, or does it "
        "depend on something that differs by worker?"
    )


def _name(call: tuple[int, ...]) -> str:
    code, number, detail, _ = call
    arguments = f", arguments {detail & 0xFFFF:04x}" if detail else ""
    return f"{CALLS[code]} (global step {number}{arguments})"
