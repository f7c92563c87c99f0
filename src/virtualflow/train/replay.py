"""A replay is a second look: the same virtual node, from the same state, with the same seed, must give the same loss.

Every job replays its first step, since that only measures how large its gradients are. Whatever keeps something from
one call to the next, wherever it hides, has changed by then: it is refused before the first update.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence, Sized
from typing import Any

import numpy as np
from torch import Tensor, nn

from virtualflow.errors import HiddenStateError
from virtualflow.train.scalars import StepScalars
from virtualflow.train.state import Parts, bytes_of, flattened, joined

MOST_ITEMS = 1000  # of an attribute that is looked at: a vocabulary is no state
_PLAIN = (bool, int, float, str, bytes, type(None))


class Replays:
    """What the virtual nodes of one step gave in its last attempt, to be compared with the next one."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._batches: dict[int, str] = {}
        self._odd_batches: list[int] = []
        self._left: dict[int, dict[str, str]] = {}
        self._odd_names: list[str] = []
        self._last: StepScalars | None = None

    def forget(self) -> None:
        """Another step begins, or this one begins from another state."""
        self._batches, self._left, self._last = {}, {}, None
        self._odd_batches, self._odd_names = [], []

    def loaded(self, node: int, batch: Any) -> None:
        """The shard that *node* is about to train on."""
        mine = digest_of(batch)
        if self._batches.setdefault(node, mine) != mine:
            self._odd_batches.append(node)

    def ran(self, node: int) -> None:
        """*node* has run: what it leaves in Python attributes of the model."""
        mine = {name: digest_of(value) for name, value in attributes(self._parts)}
        before = self._left.setdefault(node, mine)
        self._odd_names += [name for name in mine if before.get(name) != mine[name] and name not in self._odd_names]

    def compare(self, step: int, scalars: StepScalars, set_anew: Sequence[str] = ()) -> None:
        """Refuse *step* if a virtual node has another loss than in the attempt before.

        *set_anew* are names that loss_fn sets.
        """
        before, self._last = self._last, scalars
        for node, report in scalars.nodes.items() if before is not None else ():
            other = before.nodes.get(node) if before is not None else None
            if other is not None and (other.total.hex(), other.weight) != (report.total.hex(), report.weight):
                raise HiddenStateError(self._reason(step, node, other.total, report.total, set_anew))

    def _reason(self, step: int, node: int, one: float, other: float, set_anew: Sequence[str]) -> str:
        what = (
            f"in step {step}, virtual node {node} gave another loss when it ran again from the same state, with the "
            f"same seed: {other:.9g} instead of {one:.9g}. What comes out would depend on which virtual nodes ran "
            "before on the same device."
        )
        if self._odd_batches:
            return (
                f"{what} Its examples were others: the dataset or collate_fn keeps something from one call to the "
                "next (a generator of its own, a counter, data that it changes in place). Draw from the global "
                "generators of torch, numpy or random, which are seeded for each example and each shard, and copy what "
                "is changed."
            )
        if self._odd_names:
            return (
                f"{what} The model's forward keeps something in {', '.join(map(repr, self._odd_names[:3]))}. Make it "
                "a buffer (self.register_buffer): an integer that counts calls then counts steps, and what the model "
                "keeps is saved, sent and set back with it. A hidden state can't be carried from one batch to the "
                "next, since virtual nodes run as if at the same time."
            )
        named = f" (it sets {', '.join(map(repr, set_anew[:3]))})" if set_anew else ""
        return (
            f"{what} Something that loss_fn uses keeps state from one call to the next{named}: a counter or cache in "
            "an object, a list that it appends to, a generator of its own. Change it in the loop and keep it in a "
            "vf.State() in state=[...], or derive it from the batch."
        )


def attributes(parts: Parts) -> Iterator[tuple[str, Any]]:
    """What the modules of a job hold in attributes that are neither parameters, buffers nor modules."""
    for name, module in parts.named_modules():
        for key, value in vars(module).items():
            if key.startswith("_") or key == "training" or isinstance(value, nn.Module):
                continue
            if not isinstance(value, Sized) or isinstance(value, Tensor) or len(value) <= MOST_ITEMS:
                yield joined(name, key), value


def digest_of(value: Any) -> str:
    """Stands for the tensors and plain values in *value*; what is neither, or can't be read, counts by its type."""
    sha = hashlib.blake2b(digest_size=12)
    with contextlib.suppress(RecursionError):  # it holds itself
        for name, item in flattened(value, ""):
            sha.update(f"{name}\0{type(item).__name__}\0".encode())
            with contextlib.suppress(RuntimeError, TypeError, NotImplementedError):  # a form without plain bytes
                sha.update(_bytes_of(item))
    return sha.hexdigest()


def _bytes_of(item: Any) -> Any:
    if isinstance(item, Tensor):
        return f"{item.dtype} {tuple(item.shape)}\0".encode() + bytes(bytes_of(item))
    if isinstance(item, np.ndarray | np.generic) and not item.dtype.hasobject:
        return np.ascontiguousarray(item).tobytes()
    return repr(item).encode() if isinstance(item, _PLAIN) else b""
