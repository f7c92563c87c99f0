"""Speeds that are learnt from steps."""

from __future__ import annotations

import itertools

import pytest

from virtualflow.cluster.job import Job
from virtualflow.cluster.throughput.learnt import LINEAR, OWN, PROFILE, Guess, Learnt, fit, from_profile
from virtualflow.core.devices import Pool, parse_pools
from virtualflow.core.profile import Communication, Point, Profile, Workload
from virtualflow.core.step_times import TimedSteps, TypeShare, TypeShares

TYPES = ("P100", "K80")
NODES = 8
TRUE = {"P100": 0.10, "K80": 0.35}
FIXED, MORE = 0.05, 0.02


def layout(**shares: tuple[int, int]) -> TypeShares:
    return tuple(sorted(TypeShare(name, *counts) for name, counts in shares.items()))


def truth(where: TypeShares) -> float:
    devices = sum(share.devices for share in where)
    return max(TRUE[share.device_type] * share.waves for share in where) + FIXED + MORE * (devices - 1)


def measured(*layouts: TypeShares, error: float = 0.001) -> tuple[TimedSteps, ...]:
    return tuple(TimedSteps(where, 50, truth(where), error) for where in layouts)


ONE, TWO, FOUR = (layout(P100=(count, NODES // count)) for count in (1, 2, 4))
EIGHT = layout(P100=(8, 1))
SLOW, MIXED = layout(K80=(2, 4)), layout(P100=(2, 3), K80=(2, 1))


def test_without_a_step_speed_is_linear_and_types_are_equal() -> None:
    model = fit(Guess.linear(TYPES), NODES, ())
    assert model.source == LINEAR
    assert model.seconds(ONE)[0] == pytest.approx(4 * model.seconds(FOUR)[0])
    assert model.seconds(TWO)[0] == pytest.approx(model.seconds(SLOW)[0])


def test_the_first_layout_sets_the_scale() -> None:
    model = fit(Guess.linear(TYPES), NODES, measured(TWO))
    assert model.source == OWN
    assert model.seconds(TWO)[0] == pytest.approx(truth(TWO), rel=0.03)


def test_what_was_measured_is_predicted_as_it_was() -> None:
    seen = measured(ONE, TWO, FOUR, SLOW, MIXED)
    model = fit(Guess.linear(TYPES), NODES, seen)
    for each in seen:
        assert model.seconds(each.layout)[0] == pytest.approx(each.seconds, rel=0.05)


def test_what_was_not_measured_follows_from_what_was() -> None:
    model = fit(Guess.linear(TYPES), NODES, measured(ONE, TWO, FOUR))
    seconds, deviation = model.seconds(EIGHT)
    assert abs(seconds - truth(EIGHT)) < 2 * deviation
    assert seconds == pytest.approx(truth(EIGHT), rel=0.2)


def test_uncertainty_grows_with_the_distance_from_what_was_measured() -> None:
    model = fit(Guess.linear(TYPES), NODES, measured(ONE, TWO))
    parts = [deviation / seconds for seconds, deviation in map(model.seconds, (TWO, FOUR, EIGHT, SLOW))]
    assert parts == sorted(parts)
    assert parts[0] < 0.05 < 0.5 < parts[-1]


def test_more_steps_make_it_more_certain() -> None:
    few, many = (fit(Guess.linear(TYPES), NODES, measured(TWO, error=error)) for error in (0.1, 0.001))
    assert many.seconds(TWO)[1] < few.seconds(TWO)[1]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_order_of_what_was_seen_does_not_matter(order: tuple[int, ...]) -> None:
    seen = measured(ONE, SLOW, MIXED)
    model, other = (fit(Guess.linear(TYPES), NODES, some) for some in (seen, [seen[place] for place in order]))
    assert other.seconds(EIGHT)[0] == pytest.approx(model.seconds(EIGHT)[0])


def test_a_slow_type_beside_a_known_fast_one_is_found_to_be_the_slow_one() -> None:
    model = fit(Guess.linear(TYPES), NODES, measured(TWO, layout(P100=(2, 2), K80=(2, 2))))
    assert model.mean[1] > 2 * model.mean[0]
    assert not model.doubtful


def test_a_profile_says_what_a_type_is_worth_before_it_was_tried() -> None:
    profiles = {name: Profile(name, (Point(4, seconds / 2), Point(8, seconds))) for name, seconds in TRUE.items()}
    workload = Workload("train", profiles, Communication(((2, 0.02), (4, 0.06))))
    guess = from_profile(workload, 8)
    assert guess is not None
    assert guess.more == pytest.approx(MORE)
    before = fit(guess.on(TYPES), NODES, ())
    assert before.source == PROFILE
    assert before.seconds(SLOW)[0] > 3 * before.seconds(TWO)[0]
    # Twice as slow as profiled on the type that it ran on: so probably on the other one.
    after = fit(guess.on(TYPES), NODES, [TimedSteps(TWO, 50, 2 * truth(TWO), 0.001)])
    assert after.seconds(SLOW)[0] == pytest.approx(2 * before.seconds(SLOW)[0], rel=0.25)


def test_a_type_that_nobody_knows_is_like_the_others() -> None:
    guess = Guess({"P100": 0.1}, source=PROFILE, doubt=0.3).on(TYPES)
    assert guess.seconds == {"P100": 0.1, "K80": 0.1}
    assert guess.doubtful == {"K80"}


def job(demand: int) -> Job:
    return Job("a", 0.0, demand, 100.0, virtual_nodes=NODES)


def pools(text: str) -> tuple[Pool, ...]:
    return parse_pools(text)


def learnt(*layouts: TypeShares) -> Learnt:
    speeds = Learnt()
    assert speeds.know("a", fit(Guess.linear(TYPES), NODES, measured(*layouts)))
    return speeds


def test_a_speed_counts_seconds_on_the_full_demand_of_the_best_type() -> None:
    speeds = learnt(ONE, TWO, FOUR, SLOW, MIXED)
    assert speeds.speed(job(4), pools("P100:4")).steps_per_second == pytest.approx(1.0)
    assert speeds.speed(job(4), pools("P100:2")).steps_per_second == pytest.approx(truth(FOUR) / truth(TWO), rel=0.05)


def test_idle_slow_devices_are_used_as_far_as_they_make_the_step_shorter() -> None:
    speeds = learnt(ONE, TWO, SLOW, MIXED)
    alone, mixed = (speeds.speed(job(4), pools(text)) for text in ("P100:2", "P100:2,K80:2"))
    assert mixed.steps_per_second > alone.steps_per_second
    assert dict(mixed.used) == {"P100": 2, "K80": 2}
    slower = Learnt()
    slower.know("a", fit(Guess({"P100": 0.1, "K80": 5.0}, source=PROFILE), NODES, ()))
    assert dict(slower.speed(job(4), pools("P100:2,K80:2")).used) == {"P100": 2}


def test_no_more_devices_are_used_than_the_job_asks_for() -> None:
    speed = learnt(ONE, TWO, SLOW, MIXED).speed(job(3), pools("K80:8,P100:1"))
    assert dict(speed.used) == {"P100": 1, "K80": 2}


def test_what_is_not_known_is_linear() -> None:
    assert Learnt().speed(job(4), pools("P100:2")).steps_per_second == 0.5


def test_only_what_changes_a_prediction_is_news() -> None:
    speeds = learnt(ONE, TWO)
    assert not speeds.know("a", fit(Guess.linear(TYPES), NODES, measured(ONE, TWO, error=0.0011)))
    assert speeds.know("a", fit(Guess.linear(TYPES), NODES, measured(ONE, TWO, SLOW)))
