"""The queue of waiting jobs."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from virtualflow.cluster.job import Job, ScheduledJob
from virtualflow.cluster.waiting import Queue


def state(name: int) -> ScheduledJob:
    return ScheduledJob(Job(str(name), 0.0, 1, 1.0))


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=60))
def test_it_is_walked_in_order_whatever_came_and_went(moves: list[tuple[bool, int]]) -> None:
    queue, expected, number = Queue(), dict[str, tuple[int, int]](), 0
    for add, value in moves:
        if add or not expected:
            number += 1
            queue.add((value,), state(number))
            expected[str(number)] = (value, number)
        else:
            gone = sorted(expected)[value % len(expected)]
            queue.remove(gone)
            del expected[gone]
        assert [each.id for each in queue] == sorted(expected, key=expected.__getitem__)
        assert len(queue) == len(expected)
        assert all(name in queue for name in expected)
