"""Triton's kernel in Triton's interpreter: see ``test_triton_sums``."""

from __future__ import annotations

import pytest
import torch

from tests.train.test_accumulate import KINDS, Summed, addends, bits, grid_of
from virtualflow.train.accumulate import FusedAccumulator
from virtualflow.train.triton_sums import TritonAccumulator, works_on


@pytest.mark.parametrize("kind", KINDS)
def test_the_triton_kernel_gives_the_bits_of_the_c_kernel(kind: str) -> None:
    slots = [addends(kind, n, 3) for n in (3, 1024, 2500)]
    constants = [grid_of([v[v.isfinite()] for v in values if v.isfinite().any()]).constant for values in slots]
    nodes = [list(values) for values in zip(*slots, strict=True)]
    triton = TritonAccumulator(nodes[0], batch_elements=3000)
    ours, c = (Summed.of(made, nodes, constants) for made in (triton, FusedAccumulator(nodes[0])))
    finite = c.sums.isfinite()
    assert torch.equal(finite, ours.sums.isfinite())
    assert bits(c.sums[finite]) == bits(ours.sums[finite])
    assert (c.peaks, c.unclean) == (ours.peaks, ours.unclean)
    assert list(map(bits, c.results)) == list(map(bits, ours.results))
    assert c.squares.hex() == ours.squares.hex()
    assert triton.launches == 3  # one for each virtual node


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64])
def test_each_dtype_is_summed_as_it_is(dtype: torch.dtype) -> None:
    value = (torch.arange(2000) - 700).to(dtype)
    made = [kind([value]) for kind in (TritonAccumulator, FusedAccumulator)]
    for accumulator in made:
        accumulator.begin_node()
        accumulator.add(0, value, 1.5 * 2.0**30, 257.0)
    assert torch.equal(made[0].complete(range(1)), made[1].complete(range(1)))
    assert made[0].peaks.tolist() == made[1].peaks.tolist()


def test_it_is_used_where_it_works() -> None:
    assert works_on(torch.device("cpu"))
