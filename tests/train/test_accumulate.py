"""The accumulator: fused and torch versions agree bit by bit, on kind and on adversarial gradients."""

import math

import pytest
import torch
from torch import Tensor

from virtualflow.core.grid import LOWEST, LOWEST_DOUBLE, Grid, grid_for
from virtualflow.train import kernel
from virtualflow.train.accumulate import PLAIN, Accumulator

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


def summed(
    values: list[Tensor], constant: float, fused: bool, weight: float = 3.0
) -> tuple[Tensor, list[int], Tensor, float]:
    accumulator = Accumulator([values[0]], fused=fused)
    for value in values:
        accumulator.add(0, value, constant)
    sums = accumulator.complete(range(1)).clone()
    return sums, accumulator.peaks(), accumulator.finish(0, weight).clone(), accumulator.norm()


def bits(tensor: Tensor) -> list[int]:
    return tensor.contiguous().view(torch.uint8).tolist()


@pytest.mark.skipif(kernel.load() is None, reason="no C compiler; install gcc")
@pytest.mark.parametrize("n", [1, 7, 1024, 4096, 70_001])
@pytest.mark.parametrize("kind", KINDS)
def test_the_fused_kernel_gives_the_same_bits_as_torch(kind: str, n: int) -> None:
    values = addends(kind, n)
    if not any(value.isfinite().any() for value in values):
        pytest.fail("the generator made nothing finite")
    constant = grid_of([v[v.isfinite()] for v in values if v.isfinite().any()]).constant
    fused, plain = (summed(values, constant, fused=which) for which in (True, False))
    finite = fused[0].isfinite()
    assert torch.equal(finite, plain[0].isfinite())
    assert bits(fused[0][finite]) == bits(plain[0][finite])
    assert fused[1] == plain[1]
    assert bits(fused[2]) == bits(plain[2])
    assert fused[3] == plain[3] or (math.isnan(fused[3]) and math.isnan(plain[3]))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_finished_sums_do_not_depend_on_the_order(kind: str, fused: bool) -> None:
    values = addends(kind, 3000, 7)
    constant = grid_of([v[v.isfinite()] for v in values]).constant
    one = summed(values, constant, fused)
    other = summed([values[i] for i in (3, 1, 6, 0, 5, 2, 4)], constant, fused)
    assert bits(one[2]) == bits(other[2])
    assert one[1] == other[1]


def test_a_plain_sum_does_depend_on_the_order() -> None:
    values = [torch.tensor([v]) for v in (1e16, 1.0, -1e16, 1.0)]
    one, other = (summed(list(order), PLAIN, True)[2] for order in (values, values[::2] + values[1::2]))
    assert not torch.equal(one, other)


def test_slots_are_apart_and_aligned_and_what_nobody_added_is_zero() -> None:
    tensors = [torch.randn(3), torch.randn(2, 5), torch.randn(())]
    accumulator = Accumulator(tensors)
    accumulator.add(1, tensors[1], PLAIN)
    sums = accumulator.complete(range(3))
    assert sums[:8].tolist() == [0.0] * 8
    assert torch.equal(accumulator.finish(1, 1.0), tensors[1])
    assert accumulator.finish(1, 1.0).data_ptr() % 64 == 0
    assert accumulator.peaks()[0] == -1


@pytest.mark.parametrize("fused", [True, False])
def test_strides_and_dtypes_are_the_tensors_own(fused: bool) -> None:
    channels_last = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    tensors = [channels_last, torch.randn(5).bfloat16(), torch.randn(6, dtype=torch.float64), torch.arange(4)]
    accumulator = Accumulator(tensors, fused=fused)
    for index, tensor in enumerate(tensors):
        accumulator.add(index, tensor.contiguous() * 2, PLAIN)
        finished = accumulator.finish(index, 2.0)
        assert torch.equal(finished, tensor)
        assert finished.stride() == tensor.stride()
        assert finished.dtype == tensor.dtype


def test_the_norm_is_that_of_everything_finished() -> None:
    tensors = [torch.randn(5000), torch.randn(77)]
    accumulator = Accumulator(tensors)
    for index, tensor in enumerate(tensors):
        accumulator.add(index, tensor, PLAIN)
        accumulator.finish(index, 1.0)
    assert accumulator.norm() == pytest.approx(float(torch.cat(tensors).double().norm()), rel=1e-12)
