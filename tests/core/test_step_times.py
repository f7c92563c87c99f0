"""What a job's steps took, by layout."""

from __future__ import annotations

from virtualflow.core.step_times import RECENT, UNSETTLED, StepTimes, TypeShare, layout_of

ONE, TWO = ["P100:0"] * 4, ["P100:0", "P100:1"] * 2


def noted(times: StepTimes, mapping: list[str], seconds: list[float]) -> StepTimes:
    times.change(mapping)
    for each in seconds:
        times.note(each)
    return times


def test_a_layout_has_for_each_type_its_devices_and_the_most_nodes_on_one() -> None:
    mapping = ["P100:0", "P100:0", "P100:1", "K80:3", "P100:0"]
    assert layout_of(mapping) == (TypeShare("K80", 1, 1), TypeShare("P100", 2, 3))


def test_the_first_steps_after_a_change_do_not_count() -> None:
    times = noted(StepTimes(), ONE, [9.0] * UNSETTLED + [1.0] * 5)
    assert [(each.steps, each.seconds) for each in times.measured()] == [(5, 1.0)]


def test_steps_before_the_mapping_is_known_do_not_count() -> None:
    times = StepTimes()
    for _ in range(10):
        times.note(1.0)
    assert times.measured() == ()


def test_one_slow_step_does_not_move_the_time_of_the_others() -> None:
    steady, struck = ([1.0] * UNSETTLED + [1.0, 1.1, 0.9, 1.0, last] for last in (1.0, 60.0))
    assert noted(StepTimes(), ONE, steady).measured()[0].seconds == 1.0
    assert noted(StepTimes(), ONE, struck).measured()[0].seconds == 1.0


def test_a_layout_that_comes_back_goes_on_where_it_was() -> None:
    times = noted(StepTimes(), ONE, [9.0] * UNSETTLED + [1.0] * 3)
    noted(noted(times, TWO, [9.0] * UNSETTLED + [0.6] * 3), ONE, [9.0] * UNSETTLED + [1.0] * 2)
    assert [(each.devices, each.steps) for each in times.measured()] == [(1, 5), (2, 3)]
    assert times.steps == 8


def test_the_error_falls_with_the_steps_and_with_their_spread() -> None:
    def error(seconds: list[float]) -> float:
        return noted(StepTimes(), ONE, [0.0] * UNSETTLED + seconds).measured()[0].error

    assert error([1.0]) == 0.5
    assert error([0.9, 1.1] * 20) < error([0.9, 1.1] * 5) < error([0.5, 1.5] * 5)


def test_old_steps_are_forgotten() -> None:
    times = noted(StepTimes(), ONE, [0.0] * UNSETTLED + [1.0] * RECENT + [2.0] * RECENT)
    assert times.measured()[0].seconds == 2.0
