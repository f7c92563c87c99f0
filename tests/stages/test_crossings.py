"""What one stage gives to the next arrives as it was, in one message once its size is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from virtualflow.core.cell_schedule import FORWARD, CellRun
from virtualflow.testing.thread_group import ThreadGroup, run_together
from virtualflow.train.stages.crossings import HEADER_BYTES, Crossing, Crossings, MessageSizes

RUNS = [CellRun(FORWARD, 1, node) for node in range(4)]
CPU = torch.device("cpu")


class Counted(ThreadGroup):
    """Counts what it sends."""

    lengths: list[int]

    def send(self, tensor: Tensor, to: int, tag: int) -> ThreadGroup:
        self.lengths.append(len(tensor))
        return super().send(tensor, to, tag)


class Line:
    """Two workers, step by step: the first ships, the second obtains."""

    def __init__(self) -> None:
        self.groups = Counted.of(2)
        self.sizes = MessageSizes(), MessageSizes()

    def step(self, *crossings: Crossing) -> tuple[list[Crossing], list[int]]:
        """What arrived, and the lengths of messages."""
        self.groups[0].lengths = []
        runs = RUNS[: len(crossings)]
        here, there = (Crossings(group, 4, CPU, sizes) for group, sizes in zip(self.groups, self.sizes, strict=True))

        def ship() -> None:
            for run, tensors in zip(runs, crossings, strict=True):
                here.ship(tensors, run, 1)
            here.finish()

        def obtain() -> list[Crossing]:
            for run in runs:
                there.expect(run, 0)
            return [there.obtain(run) for run in runs]

        workers: list[Callable[[], Any]] = [ship, obtain]
        _, arrived = run_together(*workers)
        for sizes in self.sizes:
            sizes.all_know()
        return arrived, self.groups[0].lengths


def equal(one: Crossing, other: Crossing) -> bool:
    return all(
        mine is theirs
        if mine is None or theirs is None
        else torch.equal(mine, theirs) and (mine.dtype, mine.stride()) == (theirs.dtype, theirs.stride())
        for mine, theirs in zip(one, other, strict=True)
    )


def mixed(rows: int) -> Crossing:
    image = torch.randn(rows, 3, 5, 5).to(memory_format=torch.channels_last)
    return [image, None, torch.arange(rows), torch.zeros(0), torch.randn(rows, 7).to(torch.bfloat16), torch.tensor(2.5)]


def test_everything_arrives_as_it_was() -> None:
    line = Line()
    for rows in (2, 2, 5, 1, 3, 3):
        crossings = [mixed(rows) for _ in RUNS]
        arrived, _ = line.step(*crossings)
        assert all(equal(mine, theirs) for mine, theirs in zip(crossings, arrived, strict=True))
        for tensor in (tensor for crossing in arrived for tensor in crossing if tensor is not None):
            assert tensor.data_ptr() % 64 == 0


def test_a_size_that_is_known_takes_one_message() -> None:
    line, sent = Line(), [torch.randn(4, 16)]
    assert line.step(sent)[1] == [HEADER_BYTES, 256]
    assert line.step(sent)[1] == [HEADER_BYTES + 256]
    assert line.step([torch.randn(6, 16)])[1] == [HEADER_BYTES + 256, 128]
    assert line.step([torch.randn(2, 16)])[1] == [HEADER_BYTES + 384]
    assert line.step([torch.randn(2, 16)])[1] == [HEADER_BYTES + 128]


def test_what_one_end_alone_has_seen_is_not_relied_on() -> None:
    line = Line()
    line.sizes[0].note(RUNS[0], 1 << 20)
    for sizes in line.sizes:
        sizes.forget()
    assert line.step([torch.randn(4)])[1] == [HEADER_BYTES, 16]


def test_what_is_written_to_one_tensor_does_not_count_as_a_change_of_another() -> None:
    line = Line()
    (arrived,), _ = line.step([torch.randn(3, requires_grad=False), torch.arange(3)])
    weights, numbers = (tensor for tensor in arrived if tensor is not None)
    weights.requires_grad_()
    squares = weights * weights
    numbers += 1
    squares.sum().backward()
    assert weights.grad is not None
