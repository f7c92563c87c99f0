import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualflow.core.sharding import Epoch, node_sizes, sampled, shuffled
from virtualflow.errors import ConfigError


@settings(deadline=None)
@given(
    st.integers(1, 300), st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 5), st.integers(0, 2**40)
)
def test_each_example_is_in_one_shard_of_an_epoch(length: int, sizes: list[int], number: int, seed: int) -> None:
    epoch = Epoch(number, shuffled(seed, number, length), sizes)
    seen = [index for step in range(epoch.steps) for shard in epoch.batch(step).shards for index in shard.tolist()]
    assert sorted(seen) == list(range(length))


@settings(deadline=None)
@given(st.integers(1, 100), st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_a_short_last_batch_fills_virtual_nodes_in_order(length: int, sizes: list[int]) -> None:
    epoch = Epoch(0, shuffled(0, 0, length), sizes)
    last = [len(shard) for shard in epoch.batch(epoch.steps - 1).shards]
    full = 0
    while full < len(sizes) and last[full] == sizes[full]:
        full += 1
    assert all(size == 0 for size in last[full + 1 :])


def test_shards_are_a_pure_function_of_seed_and_epoch() -> None:
    assert (shuffled(1, 2, 50) == shuffled(1, 2, 50)).all()
    assert (shuffled(1, 2, 50) != shuffled(1, 3, 50)).any()
    assert (shuffled(1, 2, 50) != shuffled(2, 2, 50)).any()


def test_drop_last_drops_the_short_batch() -> None:
    epoch = Epoch(0, np.arange(10), [2, 2], drop_last=True)
    assert epoch.steps == 2
    with pytest.raises(IndexError):
        epoch.batch(2)


def test_node_sizes_are_as_equal_as_possible_or_as_given() -> None:
    assert node_sizes(10, 4) == (3, 3, 2, 2)
    assert node_sizes(10, [7, 3]) == (7, 3)


@pytest.mark.parametrize(
    ("batch_size", "virtual_nodes", "message"),
    [(4, 5, "below virtual_nodes"), (4, 0, "at least one"), (4, [2, 3], "add up to 5"), (4, [4, 0], "at least one")],
)
def test_impossible_node_sizes_are_refused(batch_size: int, virtual_nodes: int | list[int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        node_sizes(batch_size, virtual_nodes)


def test_a_sampler_may_not_leave_the_dataset() -> None:
    assert sampled(lambda epoch: [epoch, 0], 3, 5).tolist() == [3, 0]
    with pytest.raises(ConfigError, match="index 7"):
        sampled(lambda epoch: [7], 0, 5)
