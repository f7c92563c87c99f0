"""The accumulators: the C kernel and torch's operations agree bit by bit, on kind and on adversarial gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from virtualflow.core.grid import LOWEST, LOWEST_DOUBLE, Grid, grid_for
from virtualflow.train import kernel
from virtualflow.train.accumulate import PLAIN, Accumulator, FusedAccumulator
from virtualflow.train.batched_sums import BatchedAccumulator
from virtualflow.train.square_tree import BLOCK_ROWS, LANES, sum_of_squares

KINDS = {
    "normal": lambda n, g: torch.randn(n, generator=g),
    "spikes": lambda n, g: torch.randn(n, generator=g) * (1 + 1e6 * (torch.rand(n, generator=g) > 0.99)),
    "denormals": lambda n, g: torch.randn(n, generator=g) * 1e-42,
    "zeros": lambda n, g: torch.zeros(n),
    "nan": lambda n, g: torch.where(torch.rand(n, generator=g) > 0.99, math.nan, torch.randn(n, generator=g)),
    "huge": lambda n, g: torch.randn(n, generator=g).double() * 1e306,
    "tiny": lambda n, g: torch.randn(n, generator=g).double() * 1e-310,
    "wide": lambda n, g: torch.randn(n, generator=g).double() * 10 ** (60 * torch.randn(n, generator=g).double()),
    "inf": lambda n, g: torch.where(torch.rand(n, generator=g) > 0.99, -math.inf, torch.randn(n, generator=g)),
}


def addends(kind: str, n: int, count: int = 5) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [KINDS[kind](n, generator) for _ in range(count)]


def grid_of(values: list[Tensor]) -> Grid:
    peak = max(float(value.abs().max()) for value in values)
    return grid_for(peak, len(values), LOWEST_DOUBLE if values[0].dtype == torch.float64 else LOWEST)


@dataclass
class Summed:
    """What an accumulator makes of addends."""

    sums: Tensor
    peaks: list[int]
    unclean: list[list[bool]]
    results: list[Tensor]
    squares: float

    @classmethod
    def of(cls, accumulator: Accumulator, nodes: list[list[Tensor]], constants: list[float]) -> Summed:
        """Each of *nodes* adds one value to each slot."""
        for values in nodes:
            accumulator.begin_node()
            for slot, value in enumerate(values):
                accumulator.add(slot, value, constants[slot])
        slots = range(len(constants))
        sums, unclean = accumulator.complete(slots).clone(), accumulator.unclean().tolist()
        squares = accumulator.divide(3.0, squares=True)
        assert squares is not None
        results = [accumulator.result(slot).clone() for slot in slots]
        return cls(sums, accumulator.peaks.tolist(), unclean, results, float(squares))


def bits(tensor: Tensor) -> list[int]:
    return tensor.contiguous().view(torch.uint8).tolist()


KERNELS = [
    pytest.param(
        FusedAccumulator, marks=pytest.mark.skipif(kernel.load() is None, reason="no C compiler; install gcc")
    ),
    BatchedAccumulator,
]


@pytest.mark.skipif(kernel.load() is None, reason="no C compiler; install gcc")
@pytest.mark.parametrize("sizes", [(1,), (7, 1024), (4096, 70_001, 3)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_c_kernel_gives_the_same_bits_as_torch(kind: str, sizes: tuple[int, ...]) -> None:
    slots = [addends(kind, n) for n in sizes]
    constants = [grid_of([v[v.isfinite()] for v in values if v.isfinite().any()]).constant for values in slots]
    nodes = [list(values) for values in zip(*slots, strict=True)]
    made = FusedAccumulator(nodes[0]), BatchedAccumulator(nodes[0], batch_elements=30_000)
    fused, batched = (Summed.of(accumulator, nodes, constants) for accumulator in made)
    finite = fused.sums.isfinite()
    assert torch.equal(finite, batched.sums.isfinite())
    assert bits(fused.sums[finite]) == bits(batched.sums[finite])
    assert fused.peaks == batched.peaks
    assert fused.unclean == batched.unclean
    assert list(map(bits, fused.results)) == list(map(bits, batched.results))
    assert fused.squares.hex() == batched.squares.hex()


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("kind", KINDS)
def test_sums_do_not_depend_on_the_order(kind: str, kernels: type[Accumulator]) -> None:
    values = addends(kind, 3000, 7)
    constant = grid_of([v[v.isfinite()] for v in values]).constant
    orders = (range(7), (3, 1, 6, 0, 5, 2, 4))
    one, other = (Summed.of(kernels(values[:1]), [[values[i]] for i in order], [constant]) for order in orders)
    assert bits(one.results[0]) == bits(other.results[0])
    assert one.peaks == other.peaks


def test_a_plain_sum_does_depend_on_the_order() -> None:
    values = [torch.tensor([v]) for v in (1e16, 1.0, -1e16, 1.0)]
    orders = (values, values[::2] + values[1::2])
    one, other = (Summed.of(BatchedAccumulator(values[:1]), [[v] for v in order], [PLAIN]) for order in orders)
    assert not torch.equal(one.results[0], other.results[0])


@pytest.mark.parametrize("kernels", KERNELS)
def test_slots_are_apart_and_aligned_and_what_nobody_added_is_zero(kernels: type[Accumulator]) -> None:
    tensors = [torch.randn(3), torch.randn(2, 5), torch.randn(())]
    accumulator = kernels(tensors)
    accumulator.begin_node()
    accumulator.add(1, tensors[1], PLAIN)
    assert accumulator.complete(range(3))[:8].tolist() == [0.0] * 8
    accumulator.divide(1.0)
    assert torch.equal(accumulator.result(1), tensors[1])
    assert accumulator.result(1).data_ptr() % 64 == 0
    assert accumulator.peaks[0] == -1


@pytest.mark.parametrize("kernels", KERNELS)
def test_strides_and_dtypes_are_the_tensors_own(kernels: type[Accumulator]) -> None:
    channels_last = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    tensors = [channels_last, torch.randn(5).bfloat16(), torch.randn(6, dtype=torch.float64), torch.arange(4)]
    accumulator = kernels(tensors)
    accumulator.begin_node()
    for index, tensor in enumerate(tensors):
        accumulator.add(index, tensor.contiguous() * 2, PLAIN)
    accumulator.divide(2.0)
    for index, tensor in enumerate(tensors):
        result = accumulator.result(index)
        assert torch.equal(result, tensor)
        assert (result.stride(), result.dtype) == (tensor.stride(), tensor.dtype)


@pytest.mark.parametrize("kernels", KERNELS)
def test_addends_are_weighed_without_rounding(kernels: type[Accumulator]) -> None:
    value = torch.randn(1000).bfloat16()
    accumulator = kernels([value])
    accumulator.begin_node()
    accumulator.add(0, value, PLAIN, 257.0)
    assert torch.equal(accumulator.complete(range(1)), value.double() * 257)


def test_squares_are_summed_by_pairs_of_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(n, generator=generator) for n in (5000, 0, 77, LANES * (BLOCK_ROWS + 3) + 1)]
    whole = float(sum_of_squares(tensors))
    assert whole == pytest.approx(float(torch.cat(tensors).double().square().sum()), rel=1e-12)
    rows = [row for tensor in tensors for row in tensor.double().square().split(LANES)]
    padded = [torch.cat([row, torch.zeros(LANES - len(row), dtype=torch.float64)]) for row in rows]
    while len(padded) > 1:
        if len(padded) % 2:
            padded.append(torch.zeros_like(padded[0]))
        padded = [one + other for one, other in zip(padded[::2], padded[1::2], strict=True)]
    lanes = padded[0]
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    assert whole.hex() == float(lanes).hex()


def test_sums_are_divided_once_and_not_by_a_reciprocal(monkeypatch: pytest.MonkeyPatch) -> None:
    divide = Tensor.div_

    def as_on_cuda(self: Tensor, other: Tensor | float) -> Tensor:
        return divide(self, other) if isinstance(other, Tensor) else self.mul_(1.0 / other)

    monkeypatch.setattr(Tensor, "div_", as_on_cuda)
    counter = torch.tensor([1])
    accumulator = BatchedAccumulator([counter])
    accumulator.begin_node()
    accumulator.add(0, counter * 49, PLAIN)
    accumulator.divide(49.0)
    assert accumulator.result(0).tolist() == [1]
