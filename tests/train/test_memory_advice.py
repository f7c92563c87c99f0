"""Out of memory: the error says what size of virtual node would fit."""

from __future__ import annotations

import pytest
import torch

from virtualflow.train.memory_advice import MemoryUse, fitting_size, memory_advice

GIB = 1 << 30
ASKED = "CUDA out of memory. Tried to allocate 6.00 GiB. GPU 0 has a total capacity of 10.00 GiB"


@pytest.mark.parametrize(
    ("examples", "use", "asked", "size"),
    [
        (32, MemoryUse(2 * GIB, 9 * GIB, 10 * GIB), 9 * GIB, 16),  # 16 GiB for 32, and 8 are free
        (32, MemoryUse(2 * GIB, 10 * GIB, 10 * GIB), 0, 16),  # nothing is known beyond that it was too much
        (1, MemoryUse(9 * GIB, 10 * GIB, 10 * GIB), 0, 0),
        (8, MemoryUse(10 * GIB, 10 * GIB, 10 * GIB), GIB, 0),
        (8, MemoryUse(2 * GIB, 9 * GIB, 10 * GIB), GIB + 1, 7),
    ],
)
def test_the_size_that_may_fit_follows_from_what_was_needed(
    examples: int, use: MemoryUse, asked: int, size: int
) -> None:
    assert fitting_size(examples, use, asked) == size


def test_the_advice_names_node_size_figures_and_what_would_fit() -> None:
    text = memory_advice(3, 12, 17, torch.OutOfMemoryError(ASKED), MemoryUse(2 * GIB, 8 * GIB, 10 * GIB))
    for part in (
        "step 17",
        "virtual node 3",
        "12 example",
        "Tried to allocate",
        "has 10 GiB",
        "took 2 GiB",
        "about 8 ",
    ):
        assert part in text


def test_a_model_that_fills_the_device_is_told_apart() -> None:
    text = memory_advice(0, 1, 0, torch.OutOfMemoryError(ASKED), MemoryUse(9 * GIB, 10 * GIB, 10 * GIB))
    assert "smaller model" in text


def test_of_a_cpu_no_figures_are_known() -> None:
    assert MemoryUse.of(torch.device("cpu"), 0) is None
    assert "more virtual nodes" in memory_advice(0, 4, 0, MemoryError(), None)
