"""Values of any size between workers, as bytes: all of them arrive whole, in the order of ranks."""

from __future__ import annotations

from functools import partial

import torch

from virtualflow.testing import ThreadGroup, run_together
from virtualflow.train.packed_values import gather_packed, unpacked


def test_values_of_different_lengths_arrive_in_the_order_of_ranks() -> None:
    values = [{"text": "a" * 3000}, None, [1, (2.5, True)]]
    everyone = run_together(*(partial(gather_packed, v, g) for v, g in zip(values, ThreadGroup.of(3), strict=True)))
    assert [unpacked(packed) for packed in everyone] == [values] * 3


def test_tensors_arrive_with_their_bits() -> None:
    bits = torch.tensor([float("nan"), -0.0, 1e-45])
    (received,) = unpacked(gather_packed({"bits": bits}, None))
    assert torch.equal(received["bits"].view(torch.int32), bits.view(torch.int32))


def test_a_worker_that_is_alone_packs_its_own() -> None:
    assert unpacked(gather_packed("mine", None)) == ["mine"]
