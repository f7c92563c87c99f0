"""How the gradients and buffers of all virtual nodes become those of the step: exactly, or fast.

*Exact* rounds every addend to a grid shared by all and sums in float64: no order, and so no mapping, can change a
bit. *Fast* adds up in ``.grad`` and all-reduces once, as the paper does: equal up to rounding.
"""

from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from virtualflow.core import faults
from virtualflow.core.membership import Group, Work
from virtualflow.core.seeds import derive
from virtualflow.errors import ConfigError, LossError
from virtualflow.train.allocator import keep_freed_memory
from virtualflow.train.buckets import Buckets, cut
from virtualflow.train.buffer_sums import BufferSums
from virtualflow.train.buffers import Buffers
from virtualflow.train.scalars import INFINITE_BITS
from virtualflow.train.sums import Sums

Witness = Callable[[str, Tensor], None]
Layout = list[tuple[Any, ...]]


class Reduction(ABC):
    """One *attempt* at a step: ``begin``, then each virtual node's backward and ``end_node``, then ``flush``.

    Gradients are taken in by hooks, as soon as backward has made them.
    """

    normalises: bool  # whether a mean loss is scaled before its backward, so that no division has to follow

    def __init__(self, parameters: dict[str, nn.Parameter], buffers: Buffers, virtual_nodes: int) -> None:
        self.witness: Witness | None = None  # sees every gradient and buffer change of every virtual node
        self.finds_not_finite = True  # whether peaks must tell of gradients that are not finite
        self.parameters: list[nn.Parameter] = []
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
        self._unclean = 0
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

    def begin(self, group: Group | None) -> None:
        """Forget the last attempt; sums will be those of all workers of *group*."""
        self._group = group
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
        self._unclean = 0
        self._running, self._in_backward = True, False
        self._sending = last and self._group is not None

    def begin_backward(self, factor: float = 1.0) -> None:
        """The virtual node's gradients come next; each is multiplied by *factor*, without rounding it."""
        self._in_backward = True
        self._factor = factor

    def end_node(self, examples: int) -> int:
        """Take in the buffers a virtual node has changed; return 1 + its first unclean tensor, or 0."""
        self._running = False
        self.buffer_sums.take(examples, self.witness)
        return self._unclean

    def flush(self) -> None:
        """Send what was not sent yet, and wait until all sums are those of all workers."""
        if self._group is not None:
            self._flush_gradients()
            self.buffer_sums.flush(self._group)

    def peaks(self) -> list[int]:
        """For each tensor its largest addend on this worker, as bits, or -1 if there was none."""
        return self._gradient_peaks() + self.buffer_sums.peaks()

    def accept(self, peaks: list[int]) -> bool:
        """Whether the step may be committed, given the *peaks* over all workers; else it must be replayed."""
        # Both are asked, so that one replay serves both.
        count = len(self.parameters)
        gradients = self._accept_gradients(peaks[:count])
        return self.buffer_sums.accept(peaks[count:]) and gradients

    def finish(self, peaks: list[int], weight: float, examples: int) -> float | None:
        """Set ``.grad`` and the buffers to those of the step; return the gradient's norm if it came for free."""
        count = len(self.parameters)
        norm = self._finish_gradients(peaks[:count], weight)
        self.buffer_sums.finish(peaks[count:], examples)
        return norm

    def not_finite(self, peaks: list[int]) -> str | None:
        """The name of a tensor whose sum over all virtual nodes is not finite, if the *peaks* tell of one."""
        odd = [name for name, bits in zip(self.names, peaks, strict=True) if bits >= INFINITE_BITS]
        return odd[-1] if odd else None  # of the last layer: backward spreads it from there

    @abstractmethod
    def _adopted(self, parameters: dict[str, nn.Parameter]) -> None: ...
    @abstractmethod
    def _take(self, index: int, gradient: Tensor) -> None: ...
    @abstractmethod
    def _flush_gradients(self) -> None: ...
    @abstractmethod
    def _gradient_peaks(self) -> list[int]: ...
    @abstractmethod
    def _accept_gradients(self, peaks: list[int]) -> bool: ...
    @abstractmethod
    def _finish_gradients(self, peaks: list[int], weight: float) -> float | None: ...

    def _watch(self, parameter: nn.Parameter) -> RemovableHandle:
        # The hook stays with the parameter; the reduction need not.
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
        if self.witness is not None:
            self.witness(self.names[index], gradient)
        self._take(index, gradient)


class ExactReduction(Reduction):
    """The same bits for any mapping."""

    normalises = False

    def __init__(self, parameters: dict[str, nn.Parameter], buffers: Buffers, virtual_nodes: int) -> None:
        self.gradient_sums = Sums(virtual_nodes, exact=True)
        self._buckets = Buckets([], self._launch)
        super().__init__(parameters, buffers, virtual_nodes)

    def begin(self, group: Group | None) -> None:
        super().begin(group)
        self._buckets.restart()  # what it has sent holds the memory of the sums
        if self.gradient_sums.begin():
            sizes = [8 * self.parameters[index].numel() for index in self.gradient_sums.order]
            self._buckets = Buckets(cut(sizes), self._launch)

    @property
    def grids(self) -> dict[str, dict[str, int]]:
        return {**super().grids, "gradients": self.gradient_sums.grids_by_name()}

    @grids.setter
    def grids(self, exponents: dict[str, dict[str, int]]) -> None:
        self.buffer_sums.grids = exponents.get("buffers", {})
        self.gradient_sums.set_grids(exponents.get("gradients", {}))

    def _adopted(self, parameters: dict[str, nn.Parameter]) -> None:
        self.gradient_sums.adopt(parameters)

    def _launch(self, bucket: range) -> Work:
        assert self._group is not None
        work = self._group.sum(self.gradient_sums.complete(bucket))
        faults.reach("bucket")
        return work

    def _take(self, index: int, gradient: Tensor) -> None:
        # Summed while it is still in the cache, and freed: there is never a whole set of gradients beside the sums.
        self.parameters[index].grad = None
        clean = self.gradient_sums.add(index, gradient if self._factor == 1.0 else gradient.double() * self._factor)
        if not clean and not self._unclean:
            self._unclean = index + 1
        slot = self.gradient_sums.slot(index)
        if self._sending and slot is not None:
            self._buckets.ready(slot)

    def _flush_gradients(self) -> None:
        self._buckets.flush()

    def _gradient_peaks(self) -> list[int]:
        return self.gradient_sums.peaks()

    def _accept_gradients(self, peaks: list[int]) -> bool:
        return self.gradient_sums.accept(peaks)

    def _finish_gradients(self, peaks: list[int], weight: float) -> float:
        for index, (parameter, bits) in enumerate(zip(self.parameters, peaks, strict=True)):
            # A global fact: a gradient that is None here and zero there would make weight decay differ by mapping.
            parameter.grad = self.gradient_sums.finish(index, weight) if bits >= 0 else None
        self.gradient_sums.commit(peaks)
        return self.gradient_sums.norm()


class FastReduction(Reduction):
    """The paper's scheme: no buffer beyond ``.grad`` on one device, equal up to rounding."""

    normalises = True

    def __init__(self, parameters: dict[str, nn.Parameter], buffers: Buffers, virtual_nodes: int) -> None:
        self._order: list[int] | None = None
        self._item: dict[int, int] = {}
        self._buckets = Buckets([], self._launch)
        self._sent: list[tuple[list[Tensor], Tensor]] = []
        self._produced: set[int] = set()
        self._aside: dict[int, Tensor] = {}  # what earlier virtual nodes have summed, while this one's is weighed
        super().__init__(parameters, buffers, virtual_nodes)

    def begin(self, group: Group | None) -> None:
        super().begin(group)
        self._produced.clear()
        self._buckets.restart()
        self._sent.clear()
        # What requires a gradient now, as every worker knows; not what this one has seen.
        order = [index for index, parameter in enumerate(self.parameters) if parameter.requires_grad][::-1]
        if order != self._order:
            self._order = order
            self._item = {index: item for item, index in enumerate(order)}
            self._buckets = Buckets(cut([4 * self.parameters[index].numel() for index in order]), self._launch)

    def _adopted(self, parameters: dict[str, nn.Parameter]) -> None:
        self._order = None

    def begin_backward(self, factor: float = 1.0) -> None:
        super().begin_backward(factor)
        if factor != 1.0:
            for index, parameter in enumerate(self.parameters):
                if parameter.grad is not None:
                    self._aside[index], parameter.grad = parameter.grad, None

    def forget(self) -> None:
        super().forget()
        self._aside.clear()

    def end_node(self, examples: int) -> int:
        for index, gradient in self._aside.items():  # of parameters that this virtual node had no use for
            self.parameters[index].grad = gradient
        self._aside.clear()
        return super().end_node(examples)

    def _weigh(self, index: int, gradient: Tensor) -> None:
        if (summed := self._aside.pop(index, None)) is None:
            gradient.mul_(self._factor)
        else:
            self.parameters[index].grad = summed.add_(gradient, alpha=self._factor)

    def _take(self, index: int, gradient: Tensor) -> None:
        if self._factor != 1.0:
            self._weigh(index, gradient)
        if index not in self._item:
            raise ConfigError(
                f"{self.names[index]!r} did not require a gradient when the step began, and got one: loss_fn has "
                "unfrozen it. With reduction='fast', freeze and unfreeze between steps; or use reduction='exact'."
            )
        self._produced.add(index)
        if self._sending:
            self._buckets.ready(self._item[index])

    def _launch(self, bucket: range) -> Work:
        assert self._group is not None
        assert self._order is not None
        gradients = [_dense_gradient(self.parameters[self._order[item]]) for item in bucket]
        # A large gradient is reduced where it lies; small ones travel together.
        packed = gradients[0] if len(gradients) == 1 else torch.cat(gradients)
        self._sent.append((gradients, packed))
        return self._group.sum(packed)

    def _flush_gradients(self) -> None:
        self._buckets.flush()
        for gradients, packed in self._sent:
            if len(gradients) > 1:
                torch._foreach_copy_(gradients, packed.split([len(gradient) for gradient in gradients]))

    def _gradient_peaks(self) -> list[int]:
        # A worker sends zeros for what it has no gradient for, so whether there was one is noted by the hooks.
        peaks = [0 if index in self._produced else -1 for index in range(len(self.parameters))]
        if self.finds_not_finite and self._produced:
            produced = sorted(self._produced)
            gradients = [gradient for index in produced if (gradient := self.parameters[index].grad) is not None]
            # Norms take one quick pass over all of them. Squares may overflow where the gradient does not.
            for index, gradient, norm in zip(produced, gradients, torch._foreach_norm(gradients), strict=True):
                if not math.isfinite(norm) and not bool(gradient.isfinite().all()):
                    peaks[index] = INFINITE_BITS
        return peaks

    def _accept_gradients(self, peaks: list[int]) -> bool:
        return True

    def _finish_gradients(self, peaks: list[int], weight: float) -> None:
        gradients = []
        for parameter, bits in zip(self.parameters, peaks, strict=True):
            if bits < 0:
                parameter.grad = None
            elif parameter.grad is not None:
                gradients.append(parameter.grad)
        if weight != 1.0 and gradients:
            torch._foreach_div_(gradients, weight)


def _layout(tensors: Mapping[str, Tensor]) -> Layout:
    """What the memory of sums depends on. The same objects, or it would have to be made anew."""
    return [(name, id(t), t.dtype, t.shape, t.stride(), t.device) for name, t in tensors.items()]


def _dense_gradient(parameter: nn.Parameter) -> Tensor:
    """The memory of the parameter's gradient as a vector; zeros if it has none."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad.as_strided((parameter.numel(),), (1,), parameter.grad.storage_offset())


def sparse_reason(name: str) -> str:
    """Why a sparse gradient is refused."""
    return (
        f"the gradient of {name!r} is sparse, which is not supported: sums over virtual nodes live in one dense "
        "buffer. Use nn.Embedding(sparse=False)."
    )
