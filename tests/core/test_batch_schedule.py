"""Batch sizes by epoch: what a script asks for, and what each epoch has."""

from __future__ import annotations

import pytest

from virtualflow.core.batch_schedule import BatchSchedule
from virtualflow.errors import ConfigError


def test_one_size_is_that_of_every_epoch() -> None:
    schedule = BatchSchedule.of(10, 4)
    assert schedule.at(0) == schedule.at(99) == (3, 3, 2, 2)
    assert not schedule.changes
    assert schedule.later == {}


def test_a_curriculum_changes_at_its_epochs_and_keeps_the_number_of_virtual_nodes() -> None:
    schedule = BatchSchedule.of({5: 16, 0: 8, 7: 4}, 4)
    assert [sum(schedule.at(epoch)) for epoch in (0, 4, 5, 6, 7, 50)] == [8, 8, 16, 16, 4, 4]
    assert {len(schedule.at(epoch)) for epoch in range(9)} == {4}
    assert schedule.changes
    assert (schedule.largest_node, schedule.all_sizes) == (4, {1, 2, 4})
    assert schedule.later == {"5": 16, "7": 4}


@pytest.mark.parametrize("sizes", [{1: 8}, {-1: 8, 0: 8}])
def test_a_curriculum_begins_with_epoch_0(sizes: dict[int, int]) -> None:
    with pytest.raises(ConfigError, match="beginning with epoch 0"):
        BatchSchedule.of(sizes, 2)


def test_sizes_by_hand_fit_one_batch_only() -> None:
    with pytest.raises(ConfigError, match="Use the number of virtual nodes"):
        BatchSchedule.of({0: 8, 1: 16}, [6, 2])
