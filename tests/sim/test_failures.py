"""Devices and machines that fail and come back."""

from __future__ import annotations

import itertools

import pytest

from virtualflow.cluster.messages import DevicesLost
from virtualflow.core.devices import parse_pools
from virtualflow.errors import ConfigError
from virtualflow.sim.failures import Failures

POOLS = parse_pools("V100:4+4")


def first(failures: Failures, count: int) -> list[object]:
    return list(itertools.islice(failures.events(POOLS, 0.0), count))


def test_a_seed_decides_what_fails_and_when() -> None:
    assert first(Failures(0.5, 0.1, seed=1), 50) == first(Failures(0.5, 0.1, seed=1), 50)
    assert first(Failures(0.5, 0.1, seed=1), 50) != first(Failures(0.5, 0.1, seed=2), 50)


def test_time_runs_forward_and_nothing_breaks_twice() -> None:
    broken: set[str] = set()
    now = 0.0
    for event in itertools.islice(Failures(1.0, 0.5, repair_seconds=1800.0).events(POOLS, 0.0), 500):
        assert event.seconds >= now
        now = event.seconds
        if isinstance(event, DevicesLost):
            assert broken.isdisjoint(event.devices)
            broken |= set(event.devices)
        else:
            assert broken >= set(event.devices)
            broken -= set(event.devices)


def test_the_rate_is_met_on_average() -> None:
    events = Failures(0.01, repair_seconds=1.0).events(POOLS, 0.0)
    lost = [event for event in itertools.islice(events, 4000) if isinstance(event, DevicesLost)]
    assert lost[-1].seconds / len(lost) == pytest.approx(3600 / (0.01 * 8), rel=0.1)


def test_a_machine_takes_all_its_devices_along() -> None:
    lost = next(Failures(machine_per_hour=1.0).events(POOLS, 0.0))
    assert len(lost.devices) == 4


def test_without_a_rate_nothing_fails_and_a_negative_one_is_refused() -> None:
    assert first(Failures(), 5) == []
    with pytest.raises(ConfigError, match="negative"):
        Failures(-1.0)
