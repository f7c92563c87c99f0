"""What each device of a pipeline runs that is passed through several times, one turn after another."""

from __future__ import annotations

from virtualflow.core.interleaving import rounds_of, turns


def test_a_route_that_repeats_its_devices_in_one_order_has_rounds() -> None:
    assert rounds_of(["a", "b", "a", "b", "a", "b"]) == 3
    assert rounds_of(["a", "b"]) == 1


def test_a_route_in_another_order_or_that_ends_in_the_middle_has_none() -> None:
    assert rounds_of(["a", "b", "b", "a"]) == 0
    assert rounds_of(["a", "b", "a"]) == 0


def test_every_device_runs_each_virtual_node_once_in_each_round_and_direction() -> None:
    for devices, rounds, count in ((1, 1, 3), (2, 2, 4), (3, 2, 7), (4, 3, 2)):
        expected = sorted(
            (way, number, node) for way in (True, False) for number in range(rounds) for node in range(count)
        )
        for place in range(devices):
            assert sorted(turns(place, devices, rounds, range(count))) == expected


def test_a_backward_follows_its_forward_and_those_of_later_rounds() -> None:
    for place in range(3):
        line = turns(place, 3, 2, range(7))
        for node in range(7):
            forward_and_back = [(True, 0, node), (True, 1, node), (False, 1, node), (False, 0, node)]
            assert [turn for turn in line if turn[2] == node] == forward_and_back


def test_the_last_device_turns_back_as_soon_as_its_last_round_has_begun() -> None:
    line = turns(1, 2, 2, range(4))
    assert line[:4] == [(True, 0, 0), (True, 0, 1), (True, 1, 0), (False, 1, 0)]
