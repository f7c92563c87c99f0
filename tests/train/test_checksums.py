from __future__ import annotations

import random

import pytest
import torch

from virtualflow.core.grid import Grid
from virtualflow.train import checksums, kernel
from virtualflow.train.accumulate import accumulator

GRID = Grid(6)


@pytest.fixture(params=["kernel", "torch"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(kernel, "load", lambda: None)
    return str(request.param)


def drawn(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(3)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_checksums_of_addends_add_up_to_that_of_their_sum(either: str, dtype: torch.dtype) -> None:
    addends = [drawn(1000, dtype) * scale for scale in (1.0, -0.3, 1e-3)]
    sums = accumulator([addends[0]])
    for addend in addends:
        sums.begin_node()
        sums.add(0, addend, GRID.constant)
    sums.complete(range(1))
    parts = [checksums.of_addend(addend, GRID.constant, GRID.exponent) for addend in addends]
    assert sum(map(int, parts)) % 2**64 == int(checksums.of_sums(sums.sums_of(0), GRID.exponent)) % 2**64


def test_the_kernel_and_torch_give_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    values, sums = drawn(1001), ((drawn(777).double() + GRID.constant) - GRID.constant) * 3

    def numbers() -> list[int]:
        taken = [checksums.of_addend(values, GRID.constant, 6), checksums.of_addend(values, GRID.constant, 6, 0.3)]
        taken += [checksums.of_sums(sums, 6), checksums.of_memory(values), checksums.of_memory(values.to(torch.uint8))]
        return [int(number) % 2**64 for number in taken]

    with_kernel = numbers()
    monkeypatch.setattr(kernel, "load", lambda: None)
    assert numbers() == with_kernel


def test_no_flipped_bit_of_a_sum_stays_unseen(either: str) -> None:
    sums = (drawn(64).double() + GRID.constant) - GRID.constant
    before, chance = int(checksums.of_sums(sums, 6)), random.Random(1)
    for bit in range(64):
        element = chance.randrange(64)
        bits = sums.view(torch.int64)
        kept, mask = int(bits[element]), 1 << bit if bit < 63 else -(2**63)
        bits[element] = kept ^ mask
        if float(sums[element]) != float(torch.tensor([kept]).view(torch.float64)):  # the sign of a zero is none
            assert int(checksums.of_sums(sums, 6)) != before, bit
        bits[element] = kept


def test_the_same_bit_of_two_values_does_not_cancel(either: str) -> None:
    words = torch.tensor([8, 0, 8, 0], dtype=torch.int32)
    assert int(checksums.of_memory(words)) != int(checksums.of_memory(words.flip(0)))


def test_a_digest_sees_every_form_of_tensor() -> None:
    for value in (torch.tensor(3.0), torch.ones(3, dtype=torch.bool), torch.ones(5, dtype=torch.bfloat16)):
        other = value.clone()
        other.view(-1)[-1] = 0
        assert checksums.of_named([("a", value)]) != checksums.of_named([("a", other)])
    assert checksums.of_named([("a", 1)]) != checksums.of_named([("a", 2)])
    assert checksums.of_named([("a", torch.zeros(0)), ("b", 1)]) >= 0
