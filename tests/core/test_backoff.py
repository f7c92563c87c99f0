"""When a lost worker is replaced."""

from __future__ import annotations

import math

from virtualflow.core.backoff import MAX_LOSSES, YOUNG_SECONDS, BackOff


def test_replacements_that_die_young_are_started_ever_later_and_at_last_not_at_all() -> None:
    backoff, now, waits = BackOff({"0": -math.inf}), 0.0, []
    while not backoff.is_hopeless:
        backoff.started(["0"])
        backoff.joined(["0"], now)
        backoff.lost("0", now)
        waits.append(backoff.not_before - now)
        now += YOUNG_SECONDS
    assert len(waits) == MAX_LOSSES + 1
    assert waits == sorted(waits)
    assert waits[-1] <= 10.0


def test_a_worker_that_lived_long_counts_from_one_again() -> None:
    backoff = BackOff({}, losses=MAX_LOSSES)
    backoff.joined(["0"], 0.0)
    backoff.lost("0", YOUNG_SECONDS)
    assert backoff.losses == 1


def test_workers_that_are_lost_together_count_as_one_loss() -> None:
    backoff = BackOff({})
    backoff.joined(["0", "1", "2"], 5.0)
    for device, now in (("0", 6.0), ("1", 6.1), ("2", 6.2)):
        backoff.lost(device, now)
    assert backoff.losses == 1


def test_nothing_starts_before_its_time() -> None:
    backoff = BackOff({})
    backoff.lost("0", 100.0)
    assert not backoff.may_start(100.0)
    backoff.postpone(130.0)
    assert not backoff.may_start(129.9)
    assert backoff.may_start(130.0)
    backoff.forgive()
    assert backoff.losses == 0
