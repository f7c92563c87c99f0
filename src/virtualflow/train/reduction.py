"""How the gradients and buffers of all virtual nodes become those of the step: exactly, or fast.

*Exact* rounds every addend to a grid shared by all and sums in float64: no order, and so no mapping, can change a
bit. *Fast* adds up in ``.grad`` and all-reduces once, as the paper does: equal up to rounding.
"""

from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from virtualflow.core import faults
from virtualflow.core.membership import Group
from virtualflow.core.seeds import derive
from virtualflow.errors import ConfigError, LossError
from virtualflow.train.allocator import keep_freed_memory
from virtualflow.train.buffer_sums import BufferSums
from virtualflow.train.buffers import Buffers
from virtualflow.train.checksums import SumChecksums
from virtualflow.train.readback import Later, Readback
from virtualflow.train.scalars import INFINITE_BITS

Witness = Callable[[str, Tensor], None]
Layout = list[tuple[Any, ...]]


class SumsLost(Exception):  # noqa: N818 (a signal, raised on all workers)
    """The sums of an accepted attempt went with a worker that was lost: the step is to be made again."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What one attempt at a step has found on this worker."""

    peaks: list[int]  # for each tensor its largest addend, as bits, or -1 if there was none
    unclean: list[int]  # for each virtual node 1 + its first gradient that was not finite, or 0


class Reduction(ABC):
    """One *attempt* at a step: ``begin``, then each virtual node's backward and ``end_node``, then ``flush``.

    Gradients are taken in by hooks, as soon as backward has made them.
    """

    normalises: bool  # whether a mean loss is scaled before its backward, so that no division has to follow
    is_sharded = False  # whether every node's gradients are sent, and the division takes an agreement of its own

    def __init__(self, parameters: dict[str, nn.Parameter], buffers: Buffers, virtual_nodes: int) -> None:
        self.witness: Witness | None = None  # sees every gradient and buffer change of every virtual node
        self.finds_not_finite = True  # whether peaks must show gradients that are not finite
        self.parameters: list[nn.Parameter] = []
        self.checksums: SumChecksums | None = None
        self._buffers = buffers
        self._group: Group | None = None
        self.buffer_sums = BufferSums(buffers, virtual_nodes, exact=not self.normalises)
        keep_freed_memory()
        self._parameter_layout: Layout = []
        self._named = 0
        self._hooks: dict[nn.Parameter, RemovableHandle] = {}
        self._index: dict[nn.Parameter, int] = {}
        self._running = False
        self._in_backward = False
        self._factor = 1.0
        self._sending = False  # the last virtual node is running: what is ready may be sent
        self._arrived: set[int] = set()
        self.adopt(parameters)

    @property
    def names(self) -> list[str]:
        """The names of all tensors, in the order of their peaks: parameters, then buffers."""
        return [*(entry[0] for entry in self._parameter_layout), *(buffer.name for buffer in self._buffers.all)]

    @property
    def grids(self) -> dict[str, dict[str, int]]:
        """Where the grids lie, by the tensors' names: part of the job's state."""
        return {"buffers": self.buffer_sums.grids}

    @grids.setter
    def grids(self, exponents: dict[str, dict[str, int]]) -> None:
        self.buffer_sums.grids = exponents.get("buffers", {})

    @property
    def signature(self) -> int:
        """A number for what is reduced in a step: workers that disagree about it must not try."""
        trained = "".join("01"[parameter.requires_grad] for parameter in self.parameters)
        return derive(self._named, trained if self.normalises else "")

    def adopt(self, parameters: dict[str, nn.Parameter]) -> None:
        """Take in the gradients of *parameters* from the next ``begin`` on.

        A model may gain, lose, rename and convert parameters as it goes. Cheap if it did not.
        """
        layout = _layout(parameters)
        if layout == self._parameter_layout:
            return
        self._parameter_layout = layout
        self.parameters = list(parameters.values())
        self._index = {parameter: index for index, parameter in enumerate(self.parameters)}
        for parameter in [parameter for parameter in self._hooks if parameter not in self._index]:
            self._hooks.pop(parameter).remove()
            parameter.grad = None  # or an optimizer that still has it would go on with its last one
        for parameter in self.parameters:
            if parameter not in self._hooks and parameter.is_floating_point():
                self._hooks[parameter] = self._watch(parameter)
        self._adopted(parameters)
        self._named = derive(0, *(f"{name} {tuple(shape)}" for name, _, _, shape, *_ in layout))

    def begin(self, group: Group | None, waves: Sequence[int] = ()) -> None:
        """Forget the last attempt; sums will be those of all workers of *group*; rank r runs ``waves[r]`` nodes."""
        self._group = group
        if self.checksums is not None:
            self.checksums.begin()
        self.forget()
        self.buffer_sums.begin()
        self._sending = False

    def forget(self) -> None:
        """Leave no gradient behind."""
        self._running = False
        for parameter in self.parameters:
            parameter.grad = None

    def begin_node(self, *, last: bool) -> None:
        """A virtual node runs next; after the *last* one on this worker, gradients may be sent."""
        self._arrived.clear()
        self.buffer_sums.begin_node()
        self._running, self._in_backward = True, False
        self._sending = last and self._group is not None

    def begin_backward(self, factor: float = 1.0) -> None:
        """The virtual node's gradients come next; each is multiplied by *factor*, without rounding it."""
        self._in_backward = True
        self._factor = factor

    def end_node(self, examples: int) -> None:
        """Take in the buffers a virtual node has changed."""
        self._running = False
        self.buffer_sums.take(examples, self.witness)

    def flush(self) -> None:
        """Send what was not sent yet, and wait until all sums are those of all workers."""
        if self._group is not None:
            self._flush_gradients()
            self.buffer_sums.flush(self._group)

    @abstractmethod
    def measure(self, readback: Readback) -> Later[Measured]:
        """What was found, as soon as it is read."""

    def accept(self, peaks: list[int]) -> bool:
        """Whether the step may be committed, given the *peaks* over all workers; else it must be replayed."""
        # Both are asked, so that one replay serves both.
        count = len(self.parameters)
        gradients = self._accept_gradients(peaks[:count])
        return self.buffer_sums.accept(peaks[count:]) and gradients

    @abstractmethod
    def divide(self, weight: float) -> Tensor | None:
        """Divide the sums of the gradients by *weight*; return the sum of squares of the quotients if it is free."""

    def finish(self, peaks: list[int], examples: int) -> None:
        """Set ``.grad`` and the buffers to those of the step."""
        count = len(self.parameters)
        self._finish_gradients(peaks[:count])
        self.buffer_sums.finish(peaks[count:], examples)

    def norm(self, squares: float) -> float:
        """The 2-norm of the gradient, from what ``divide`` returned."""
        return math.sqrt(squares)

    def not_finite(self, peaks: list[int]) -> str | None:
        """The name of a parameter whose summed gradient is not finite, if the *peaks* show one."""
        gradients = zip(self.names, peaks[: len(self.parameters)], strict=False)
        odd = [name for name, bits in gradients if bits >= INFINITE_BITS]
        return odd[-1] if odd else None  # of the last layer: backward spreads it from there

    @abstractmethod
    def _adopted(self, parameters: dict[str, nn.Parameter]) -> None: ...
    @abstractmethod
    def _take(self, index: int, gradient: Tensor) -> None: ...
    @abstractmethod
    def _flush_gradients(self) -> None: ...
    @abstractmethod
    def _accept_gradients(self, peaks: list[int]) -> bool: ...
    @abstractmethod
    def _finish_gradients(self, peaks: list[int]) -> None: ...

    def _watch(self, parameter: nn.Parameter) -> RemovableHandle:
        # The hook stays with the parameter; the reduction may go.
        watching = weakref.ref(self)

        def arrived(parameter: Tensor) -> None:
            reduction = watching()
            if reduction is not None and reduction._running:  # else a backward of the user's own
                assert isinstance(parameter, nn.Parameter)
                reduction._arrive(reduction._index[parameter], parameter)

        # Frozen ones too: a loss_fn may unfreeze what it needs. Only a tensor that requires a gradient takes a hook.
        frozen = not parameter.requires_grad
        handle: RemovableHandle = parameter.requires_grad_(True).register_post_accumulate_grad_hook(arrived)
        parameter.requires_grad_(not frozen)
        return handle

    def _arrive(self, index: int, parameter: Tensor) -> None:
        gradient = parameter.grad
        assert gradient is not None
        if not self._in_backward:
            raise LossError(
                f"loss_fn has called backward(), which gave {self.names[index]!r} a gradient. The Trainer does that: "
                "return the loss, and call no backward() in loss_fn. For gradients with respect to inputs, or for a "
                "penalty on gradients, use torch.autograd.grad."
            )
        if gradient.is_sparse:
            raise ConfigError(sparse_reason(self.names[index]))
        if index in self._arrived:
            raise ConfigError(
                f"the gradient of {self.names[index]!r} arrived twice in one backward. Use torch.utils.checkpoint "
                "with use_reentrant=False."
            )
        self._arrived.add(index)
        faults.reach("backward")
        faults.expose("gradients", [gradient])
        if self.witness is not None:
            self.witness(self.names[index], gradient)
        self._take(index, gradient)


def _layout(tensors: Mapping[str, Tensor]) -> Layout:
    """What the memory of sums depends on. The same objects, or it would have to be made anew."""
    return [(name, id(t), t.dtype, t.shape, t.stride(), t.device) for name, t in tensors.items()]


def sparse_reason(name: str) -> str:
    """Why a sparse gradient is refused."""
    return (
        f"the gradient of {name!r} is sparse, which is not supported: sums over virtual nodes live in one dense "
        "buffer. Use nn.Embedding(sparse=False)."
    )
