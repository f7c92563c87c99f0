"""Buffers that virtual nodes have made: every worker ends up with the same ones."""

from __future__ import annotations

from functools import partial

import torch

from tests.train.several import peers_of
from virtualflow.testing import run_together
from virtualflow.train.new_buffers import NewBuffer, from_all

CPU = torch.device("cpu")


def made(node: int, *values: float, persistent: bool = True) -> NewBuffer:
    return NewBuffer(node, torch.tensor(values), persistent)


def test_all_workers_have_the_buffers_of_all() -> None:
    mine = [{"a": made(0, 1.0)}, {"b": made(1, 2.0, persistent=False)}, {}]
    for new in run_together(*(partial(from_all, p, 3, m, CPU) for p, m in zip(peers_of(3), mine, strict=True))):
        assert {name: (each.node, each.tensor.tolist(), each.persistent) for name, each in new.items()} == {
            "a": (0, [1.0], True),
            "b": (1, [2.0], False),
        }


def test_of_several_with_one_name_the_largest_is_kept_and_among_equals_the_first_nodes() -> None:
    mine = [{"table": made(2, 1.0, 2.0), "mean": made(2, 5.0)}, {"table": made(1, 3.0), "mean": made(1, 4.0)}]
    for new in run_together(*(partial(from_all, p, 0, m, CPU) for p, m in zip(peers_of(2), mine, strict=True))):
        assert (new["table"].node, new["table"].tensor.tolist()) == (2, [1.0, 2.0])
        assert (new["mean"].node, new["mean"].tensor.tolist()) == (1, [4.0])
