"""A manager's time, whatever is done to the clock."""

from __future__ import annotations

from virtualflow.system.clock import SteadyClock
from virtualflow.testing import FakeClock


def test_time_goes_on_from_where_it_was_when_the_clock_is_set_back() -> None:
    clock = FakeClock(1000.0)
    seconds = SteadyClock(clock)
    clock.now = 1010.0
    assert seconds() == 1010.0
    clock.now = 10.0  # set back
    assert seconds() == 1010.0
    clock.now = 15.0
    assert seconds() == 1015.0


def test_time_follows_a_clock_that_is_set_forward() -> None:
    clock = FakeClock(0.0)
    seconds = SteadyClock(clock)
    clock.now = 5000.0
    assert seconds() == 5000.0
