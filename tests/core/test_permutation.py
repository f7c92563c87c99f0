"""A shuffled order that is computed and not kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtualflow.core.permutation import permuted
from virtualflow.core.sharding import Epoch, GivenBatches, PassAfterPass, Steps


@given(st.integers(1, 3000), st.integers(0, 2**32 - 1))
def test_every_position_goes_to_a_place_of_its_own(length: int, seed: int) -> None:
    assert sorted(permuted(np.arange(length), length, seed)) == list(range(length))


def test_seeds_give_unrelated_orders() -> None:
    orders = [permuted(np.arange(1000), 1000, seed) for seed in range(20)]
    equal = [np.mean(one == other) for one in orders for other in orders if one is not other]
    assert max(equal) < 0.01  # 0.001 for random ones
    assert np.abs([np.corrcoef(np.arange(1000), order)[0, 1] for order in orders]).max() < 0.15


def test_a_place_does_not_depend_on_what_else_is_asked_for() -> None:
    length = 288_000_000
    some = np.array([0, 5, length - 1])
    assert [int(permuted(some[i : i + 1], length, 3)[0]) for i in range(3)] == permuted(some, length, 3).tolist()


@pytest.mark.parametrize("length", [7, 8, 20])
def test_steps_have_each_example_once_a_pass(length: int) -> None:
    plan = Steps(10 * length, length, (3, 2), seed=4)
    order = np.concatenate([np.concatenate(plan.batch(step).shards) for step in range(plan.steps)])
    passes = order.reshape(-1, length)
    assert all(sorted(one) == list(range(length)) for one in passes)
    assert len({tuple(one) for one in passes.tolist()}) > len(passes) // 2


def test_epochs_follow_each_other_in_steps() -> None:
    def plan(number: int) -> Epoch:
        return Epoch(number, np.arange(5 + number), (2,))

    steps = PassAfterPass(9, plan)
    result = [(batch.epoch, batch.step, batch.shards[0].tolist()) for batch in map(steps.batch, range(9))]
    assert result[:4] == [(0, 0, [0, 1]), (0, 1, [2, 3]), (0, 2, [4]), (1, 3, [0, 1])]
    assert [epoch for epoch, _, _ in result] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert steps.batch(0).shards[0].tolist() == [0, 1]  # a replay may look back


def test_a_short_batch_fills_virtual_nodes_in_order() -> None:
    plan = GivenBatches(2, [np.array([4, 1, 3]), np.array([0, 2, 5, 6])], (2, 2))
    assert [shard.tolist() for shard in plan.batch(0).shards] == [[4, 1], [3]]
    assert [shard.tolist() for shard in plan.batch(1).shards] == [[0, 2], [5, 6]]
