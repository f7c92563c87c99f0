"""``vf run --audit``: finds state that a virtual node leaves behind where the job can't see it.

Every step's virtual nodes run twice, in opposite orders. A counter in a module, a cache, or a generator of the user's
own shows as a gradient that differs between the two.
"""

from __future__ import annotations

import hashlib

from torch import Tensor

from virtualflow.errors import HiddenStateError
from virtualflow.train.reduction import ExactReduction, Reduction
from virtualflow.train.state import bytes_of


class Audit:
    """Compares what each virtual node produced in a rehearsal with what it produced in the step itself."""

    def __init__(self) -> None:
        self._rehearsed: dict[tuple[int, str], bytes] = {}
        self._recording = False
        self._step = 0
        self._node = 0

    def rehearsal(self) -> None:
        self._rehearsed.clear()
        self._recording = True

    def performance(self) -> None:
        self._recording = False

    def begin_node(self, reduction: Reduction, step: int, node: int) -> None:
        reduction.witness = self._see
        self._step, self._node = step, node

    def hash_accumulator(self, reduction: Reduction) -> str | None:
        """sha256 of the reduced sums: where a missing grid shows, long before the model's digest differs."""
        if not isinstance(reduction, ExactReduction):
            return None
        sums = reduction.gradient_sums.complete(range(len(reduction.gradient_sums.order)))
        return hashlib.sha256(bytes_of(sums)).hexdigest()

    def _see(self, name: str, value: Tensor) -> None:
        digest = hashlib.blake2b(bytes_of(value), digest_size=16).digest()
        key = (self._node, name)
        if self._recording:
            self._rehearsed[key] = digest
        elif self._rehearsed.get(key, digest) != digest:
            raise HiddenStateError(
                f"hidden state: in step {self._step}, virtual node {self._node} gave another gradient of {name!r} when "
                "it ran a second time, after other virtual nodes. Something keeps state from one call of loss_fn to "
                "the next: a counter or cache in a module, a global, a generator of its own. Keep it in a buffer, or "
                "derive it from the batch."
            )
