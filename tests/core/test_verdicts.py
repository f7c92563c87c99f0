from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest

from virtualflow.core import verdicts
from virtualflow.core.verdicts import SentinelVerdict, checkers, is_due, judge, liars, odd_ones, rate_of
from virtualflow.errors import ConfigError

FOUR = {device: tuple(range(4 * place, 4 * place + 4)) for place, device in enumerate("abcd")}


@pytest.mark.parametrize("value", ["1/16", "0.0625", 0.0625, Fraction(1, 16)])
def test_a_rate_is_written_as_a_fraction_or_a_number(value: str | float) -> None:
    assert rate_of(value) == Fraction(1, 16)


@pytest.mark.parametrize("value", ["", "many", "1/0", "-0.1", 1.5, float("nan"), float("inf")])
def test_what_is_no_part_of_a_batch_is_refused(value: str | float) -> None:
    with pytest.raises(ConfigError, match="expected a part of the batch"):
        rate_of(value)


def test_at_full_rate_every_node_is_run_again_by_another_device_than_its_own() -> None:
    for step in range(20):
        watched = checkers(step, 5, FOUR, "abcd", Fraction(1))
        assert sorted(watched) == list(range(16))
        assert all(node not in FOUR[device] for node, device in watched.items())


@pytest.mark.parametrize("rate", [Fraction(1, 16), Fraction(1, 3), Fraction(5, 8)])
def test_over_many_steps_each_node_is_watched_as_often_as_the_rate_says(rate: Fraction) -> None:
    times = Counter(node for step in range(4800) for node in checkers(step, 5, FOUR, "abcd", rate))
    assert sum(times.values()) == pytest.approx(4800 * 16 * rate, rel=0.1)
    assert max(times.values()) < 1.5 * min(times.values())


def test_all_devices_check_in_the_same_steps_since_a_step_lasts_as_long_as_its_slowest_device() -> None:
    for step in range(64):
        checks = Counter(checkers(step, 5, FOUR, "abcd", Fraction(1, 16)).values())
        assert len(checks) in (0, 4)
        assert set(checks.values()) <= {1}


def test_each_device_checks_every_other_one_in_time() -> None:
    pairs = {
        (node // 4, device) for s in range(200) for node, device in checkers(s, 5, FOUR, "abcd", Fraction(1, 4)).items()
    }
    assert len(pairs) == 12


def test_one_device_alone_watches_nothing() -> None:
    assert checkers(3, 5, {"a": (0, 1)}, "a", Fraction(1)) == {}


def test_replicas_are_compared_in_as_many_steps_as_the_rate_says() -> None:
    assert all(is_due(step, 5, Fraction(1)) for step in range(10))
    assert sum(is_due(step, 5, Fraction(1, 16)) for step in range(3200)) == pytest.approx(200, rel=0.2)


def test_a_judge_is_a_third_device() -> None:
    assert {judge(step, 5, ("a", "b"), "abcd") for step in range(40)} == {"c", "d"}
    assert judge(3, 5, ("a", "b"), "ab") is None


@pytest.mark.parametrize(
    ("tries", "guilty"),
    [
        ([{"a": 1, "b": 2}], ()),
        ([{"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 2}], ("a",)),
        ([{"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 1}], ("b",)),
        ([{"a": 9, "b": 2}, {"a": 2, "b": 2, "c": 2}], ("a",)),
        ([{"a": 9, "b": 2}, {"a": 8, "b": 2}], ("a",)),
        ([{"a": 9, "b": 2}, {"a": 2, "b": 2}], ("a",)),
        ([{"a": 1, "b": 2}, {"a": 1, "b": 2}], ()),
        ([{"a": 1, "b": 2}, {"a": 3, "b": 4}], ()),
        ([{"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}], ()),
        ([{"a": 9, "b": 2}, {"a": 2, "b": 2, "c": 7}], ("a", "c")),
    ],
)
def test_what_two_devices_agree_on_is_right(tries: list[dict[str, int]], guilty: tuple[str, ...]) -> None:
    assert liars(tries) == guilty


def test_most_replicas_are_right() -> None:
    assert odd_ones({"a": 1, "b": 1, "c": 2}) == ("c",)
    assert odd_ones({"a": 1, "b": 2}) is None
    assert odd_ones({"a": 1, "b": 1}) == ()


def test_a_finding_says_who_did_what_and_what_was_done_about_it() -> None:
    text = SentinelVerdict("virtual node", "gpu3", "drained", 5).text
    assert text == "device gpu3 computed virtual node 5 wrongly; it is drained, and the step was made again without it"
    assert "not known" in SentinelVerdict("received sums", "", "replayed").text
    assert set(verdicts.ACTIONS) == {"drained", "set right", "replayed", "sent again"}
