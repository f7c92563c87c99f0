"""The paper's scheme: gradients add up in ``.grad``, and are all-reduced once. Equal up to rounding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from virtualflow.core.membership import Group, Work
from virtualflow.errors import ConfigError
from virtualflow.train.buckets import Buckets, cut
from virtualflow.train.buffers import Buffers
from virtualflow.train.readback import Later, Readback
from virtualflow.train.reduction import Measured, Reduction
from virtualflow.train.scalars import INFINITE_BITS


class FastReduction(Reduction):
    """The paper's scheme: no buffer beyond ``.grad`` on one device, equal up to rounding."""

    normalises = True

    def __init__(self, parameters: dict[str, nn.Parameter], buffers: Buffers, virtual_nodes: int) -> None:
        self._order: list[int] | None = None
        self._item: dict[int, int] = {}
        self._buckets = Buckets([], self._launch)
        self._sent: list[tuple[list[Tensor], Tensor]] = []
        self._produced: set[int] = set()
        self._nodes = 0
        self._aside: dict[int, Tensor] = {}  # what earlier virtual nodes have summed, while this one's is weighed
        super().__init__(parameters, buffers, virtual_nodes)

    def begin(self, group: Group | None, waves: Sequence[int] = ()) -> None:
        super().begin(group, waves)
        self._nodes = 0
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

    def end_node(self, examples: int) -> None:
        for index, gradient in self._aside.items():  # of parameters that this virtual node had no use for
            self.parameters[index].grad = gradient
        self._aside.clear()
        super().end_node(examples)

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

    def begin_node(self, *, last: bool) -> None:
        super().begin_node(last=last)
        self._nodes += 1

    def measure(self, readback: Readback) -> Later[Measured]:
        buffers = self.buffer_sums.peaks(readback)
        produced = sorted(self._produced)
        gradients = [gradient for index in produced if (gradient := self.parameters[index].grad) is not None]
        if not self.finds_not_finite or not gradients:
            return lambda: Measured(self._peaks([]) + buffers(), [0] * self._nodes)
        # Norms take one quick pass over all of them.
        norms = readback.integers(torch.stack(torch._foreach_norm(gradients)).isfinite())

        def measured() -> Measured:
            # Squares may overflow where the gradient does not.
            suspects = [place for place, finite in enumerate(norms()) if not finite]
            odd = [produced[place] for place in suspects if not bool(gradients[place].isfinite().all())]
            return Measured(self._peaks(odd) + buffers(), [0] * self._nodes)

        return measured

    def _peaks(self, odd: list[int]) -> list[int]:
        # A worker sends zeros for what it has no gradient for, so whether there was one is noted by the hooks.
        peaks = [0 if index in self._produced else -1 for index in range(len(self.parameters))]
        for index in odd:
            peaks[index] = INFINITE_BITS
        return peaks

    def divide(self, weight: float) -> None:
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        if weight != 1.0 and gradients:
            torch._foreach_div_(gradients, weight)

    def _accept_gradients(self, peaks: list[int]) -> bool:
        return True

    def _finish_gradients(self, peaks: list[int]) -> None:
        for parameter, bits in zip(self.parameters, peaks, strict=True):
            if bits < 0:
                parameter.grad = None


def _dense_gradient(parameter: nn.Parameter) -> Tensor:
    """The memory of the parameter's gradient as a vector; zeros if it has none."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad.as_strided((parameter.numel(),), (1,), parameter.grad.storage_offset())
