"""``vf run --audit``: finds state that a virtual node leaves behind where the job can't see it.

Every step's virtual nodes run twice: first those of the next worker, in the opposite order, then the worker's own. A
counter in a module, a cache, a generator of the user's own, or a variable of the script that a worker that joined does
not have shows as a gradient that differs between the two.
"""

from __future__ import annotations

import hashlib
import time

from torch import Tensor

from virtualflow.core.membership import Group, Membership
from virtualflow.core.sharding import EpochPlan
from virtualflow.errors import HiddenStateError
from virtualflow.train.exact_reduction import ExactReduction
from virtualflow.train.packed_values import gather_packed, unpacked
from virtualflow.train.reduction import Reduction
from virtualflow.train.state import bytes_of

Seen = dict[tuple[int, str], str]
SLOW_SECONDS, MOST_BOUNDARIES = 0.25, 80  # a worker takes seconds to start, and a small job would be over by then


class AuditExchange:
    """Has a worker replaced by a new one, once, while the job runs: what that one lacks shows in the next steps."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._asked_at = -1  # as many changes were there before
        self._boundaries = 0

    def cross_boundary(self, epoch: EpochPlan, step: int, epochs: int) -> None:
        """Ask for it in the second epoch, or in the middle of the only one; then be slow until it has happened."""
        if self._asked_at < 0:
            if (epoch.number >= 1 and step >= 1) or (epochs == 1 and step >= epoch.steps // 2):
                self._asked_at = len(self._membership.changes)
                if self._membership.device == self._membership.devices[0]:
                    self._membership.exchange()
            return
        if self._boundaries < MOST_BOUNDARIES and not any(
            change.joined for change in self._membership.changes[self._asked_at :]
        ):
            self._boundaries += 1
            time.sleep(SLOW_SECONDS)


class Audit:
    """Compares what each virtual node produced in a rehearsal with what it produced in the step itself."""

    def __init__(self) -> None:
        self._rehearsed: Seen = {}
        self._performed: Seen = {}
        self._recording = self._rehearsed
        self._node = 0

    def rehearsal(self) -> None:
        self._rehearsed.clear()
        self._recording = self._rehearsed

    def performance(self) -> None:
        self._performed.clear()
        self._recording = self._performed

    def begin_node(self, reduction: Reduction, node: int) -> None:
        reduction.witness = self._see
        self._node = node

    def compare(self, step: int, group: Group | None) -> None:
        """Refuse a step in which a virtual node gave other bits in the rehearsal, wherever that was."""
        mine = {"rehearsed": self._rehearsed, "performed": self._performed}
        everyone = unpacked(gather_packed(mine, group))
        rehearsed = {
            key: (rank, seen) for rank, theirs in enumerate(everyone) for key, seen in theirs["rehearsed"].items()
        }
        for rank, theirs in enumerate(everyone):
            for key, seen in theirs["performed"].items():
                other, before = rehearsed.get(key, (rank, seen))
                if before != seen:
                    node, name = key
                    raise HiddenStateError(_reason(step, node, name, rank, other))

    def hash_accumulator(self, reduction: Reduction) -> str | None:
        """sha256 of the reduced sums: where a missing grid shows, long before the model's digest differs."""
        if not isinstance(reduction, ExactReduction):
            return None
        sums = reduction.gradient_sums.complete(range(len(reduction.gradient_sums.order)))
        return hashlib.sha256(bytes_of(sums)).hexdigest()

    def _see(self, name: str, value: Tensor) -> None:
        self._recording[self._node, name] = hashlib.blake2b(bytes_of(value), digest_size=16).hexdigest()


def _reason(step: int, node: int, name: str, rank: int, other: int) -> str:
    how, cause = (
        (
            "when it ran a second time, after other virtual nodes",
            "Something keeps state from one call of loss_fn to the next: a counter or cache in a module, a global, a "
            "generator of its own",
        )
        if rank == other
        else (
            f"on the worker of rank {other} than on that of rank {rank}",
            "Something that it uses differs between workers: a variable of the script, a counter or cache, a generator "
            "of its own",
        )
    )
    return (
        f"hidden state: in step {step}, virtual node {node} gave another gradient of {name!r} {how}. {cause}. Keep it "
        "in a buffer or a vf.State() in state=[...], or derive it from the batch."
    )
