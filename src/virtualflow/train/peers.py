"""This worker's dealings with the others: who runs what now, and calls that all make together.

A call ends in an *agreement*: a small result that is the same on every worker. Agreements are numbered, over all
Trainers of a process. When a peer is lost in the middle of one, those who have it hand it to those who have not; if
nobody has it, all try again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from virtualflow.core.mapping import DeviceId
from virtualflow.core.membership import Group, Handover, Membership
from virtualflow.errors import CollectiveError, ConfigError, CoordinatorLostError, PeerLostError
from virtualflow.train.announcement import CALLS, Announcement
from virtualflow.train.packed_values import gather_packed, unpacked
from virtualflow.train.shared_errors import LocalError, raise_first

_DTYPES = (torch.int64, torch.uint8)


class Peers:
    """The workers of a job as one of them sees them."""

    def __init__(self, membership: Membership) -> None:
        self.membership = membership
        self.agreements = 0
        self.last = torch.zeros(0, dtype=torch.int64)
        self.trainers = 0  # that this process has made
        self._inside = ""  # what of the user's runs now for one virtual node, and so not on all workers at a time
        self.raised = ""  # by the last step here, where it may not have been on the others
        self.under_way: set[int] = set()  # Trainers, by number, whose loop over epochs runs
        self.may_leave_early = True  # whether others hold all that this worker does
        self.keep_at_the_end: Callable[[], None] = lambda: None  # when the script has ended, and no coordinator knows

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
        """The virtual nodes that this worker runs now, of this number."""
        return self.membership.mapping(virtual_nodes).nodes_of(self.membership.device)

    @property
    def is_lead(self) -> bool:
        return self.membership.devices[0] == self.membership.device

    def announce(self, call: str, number: int = 0, detail: int = 0) -> Announcement:
        """Say which call this worker makes; ``check`` the others' before sending anything that belongs to it."""
        if self._inside:
            raise ConfigError(
                f"{self._inside} has called trainer.{call}. It runs once for each virtual node, and workers have "
                "different numbers of them: what it would get, or whether it would return, would depend on the "
                "devices. Make the call in the loop, between steps; a loss can see no more than its virtual node."
            )
        group = self.group
        if group is None:
            return Announcement(None, [], self.membership)
        mine = torch.tensor([CALLS.index(call), number, detail, self.membership.seen], dtype=torch.int64)
        everyone = [torch.empty_like(mine) for _ in range(group.size)]
        return Announcement(group.gather(mine, everyone), everyone, self.membership, self.raised)

    @contextlib.contextmanager
    def inside(self, function: str) -> Iterator[None]:
        """*function*, which is the user's, runs for one virtual node: no call that all workers make belongs there."""
        before, self._inside = self._inside, function
        try:
            yield
        finally:
            self._inside = before

    @contextlib.contextmanager
    def noting_errors(self, global_step: int) -> Iterator[None]:
        """Note what a step ends with: if that was so on this worker alone, the next call will have to name it."""
        try:
            yield
            self.raised = ""
        except Exception as error:
            self.raised = f"trainer.step (global step {global_step}) has raised {type(error).__name__}: {error}"
            raise

    def announce_end(self) -> None:
        """Let peers that make another call know that this worker's script has ended."""
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

        return [int(item) for item in self.agree(attempt)]

    def has_joiners(self, call: str, number: int) -> bool:
        """Whether any worker knows of one that has joined; all get the same answer.

        What each remembers for itself may differ: one that was lost while the group formed is known to some alone.
        """
        return any(self.gathered(call, number, int(any(change.joined for change in self.membership.changes))))

    def exchanged(self, call: str, number: int, value: Any) -> list[Any]:
        """Every worker's *value*, in the order of their ranks: tensors and plain values, of any size."""
        return unpacked(self.agree(lambda: self._exchange(call, number, value)))

    def gather(self, number: int, value: Any) -> Tensor:
        """Every worker's *value*, packed for ``unpacked``."""
        mine, met = self._packable(value, "trainer.gather")
        packed = self.agree(lambda: self._exchange("gather", number, mine))
        raise_first((theirs["met"] for theirs in unpacked(packed)), met)
        return packed

    def _packable(self, value: Any, call: str) -> tuple[dict[str, Any], LocalError | None]:
        """*value* as it travels, or the error that it can't."""
        try:
            unpacked(gather_packed(value, None))
        except Exception as error:
            met = LocalError(error, call, self.membership.device, self.membership.devices.index(self.membership.device))
            return {"value": None, "met": met.description}, met
        return {"value": value, "met": None}, None

    def raise_met(self, call: str, number: int, met: LocalError | None) -> None:
        """Raise on all workers the first error that one has met; return if its worker was lost meanwhile."""
        raise_first(self.exchanged(call, number, met.description if met is not None else None), met)

    def _exchange(self, call: str, number: int, value: Any) -> Tensor:
        self.announce(call, number).check()
        return gather_packed(value, self.group)

    def from_lead(
        self,
        call: str,
        number: int,
        value: Callable[[], int],
        detail: int = 0,
    ) -> int:
        """The lead's *value*. If the lead is lost, the next one's."""

        def attempt() -> Tensor:
            self.announce(call, number, detail).check()
            shared = torch.tensor([value() if self.is_lead else 0])
            if self.group is not None:
                self.group.broadcast(shared, 0).wait()
            return shared

        return int(self.agree(attempt))

    def once(self, call: str, number: int, function: Callable[[], object]) -> None:
        """Have the lead call *function*; if it is lost meanwhile, the next one. Raises on all what that raises."""
        met: LocalError | None = None

        def called() -> int:
            nonlocal met
            met = None
            try:
                function()
            except Exception as error:
                met = LocalError(error, f"what trainer.{call} has the lead do", self.membership.device)
            return int(met is not None)

        if self.from_lead(call, number, called):
            self.raise_met(call, number, met)
            raise CollectiveError(f"what trainer.{call} had the lead do has failed there, and the lead was lost")

    def broadcast(self, number: int, value: Any) -> Tensor:
        """The lead's *value*, tensors and plain values, packed for ``unpacked``."""
        met: LocalError | None = None

        def attempt() -> Tensor:
            nonlocal met
            self.announce("broadcast", number).check()
            packed = torch.zeros(0, dtype=torch.uint8)
            if self.is_lead:
                mine, met = self._packable(value, "trainer.broadcast")
                packed = gather_packed(mine, None)
            if self.group is None:
                return packed
            length = torch.tensor([len(packed)])
            self.group.broadcast(length, 0).wait()
            packed = packed if self.is_lead else torch.zeros(int(length), dtype=torch.uint8)
            self.group.broadcast(packed, 0).wait()
            return packed

        packed = self.agree(attempt)
        raise_first((theirs["met"] for theirs in unpacked(packed)), met)
        return packed

    def share(self, call: str, tensors: list[Tensor], holders: Sequence[DeviceId] = ()) -> None:
        """Give every worker the lead's *tensors*, or those of the first of *holders* that is still there."""

        def attempt() -> Tensor:
            self.announce(call).check()
            devices = self.membership.devices
            source = next((devices.index(holder) for holder in holders if holder in devices), 0)
            if self.group is not None:
                for tensor in tensors:
                    self.group.broadcast(tensor.detach(), source).wait()
                self.group.settle()
                # Whoever completes this knows that everyone holds them; the lead has its own from the start.
                self.group.max(torch.zeros(1)).wait()
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
        counts = [int(row[0]) for row in everyone]
        if min(counts) == max(counts):
            return None
        ahead = counts.index(max(counts))
        if self.agreements < counts[ahead]:
            last = torch.empty(int(everyone[ahead][1]), dtype=_DTYPES[int(everyone[ahead][2])])
        group.broadcast(last, ahead).wait()
        return last if self.agreements < counts[ahead] else None
