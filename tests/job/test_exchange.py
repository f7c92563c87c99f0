"""The audit's exchange of a worker, and early results for whoever joins."""

from __future__ import annotations

import pytest

from virtualflow.core.roster import Roster
from virtualflow.core.roster_events import SizesKnown
from virtualflow.job.early_calls import EarlyCalls
from virtualflow.job.exchange import NO_SECOND_DEVICE, Exchange
from virtualflow.job.wire_messages import EarlyResult, ExchangeWorker


def roster_of(*devices: str) -> Roster:
    roster = Roster(devices, None, None, replace_lost=True, patience_seconds=1.0)
    roster.handle(SizesKnown((2, 2)), 0.0)
    return roster


def moves_of(exchange: Exchange) -> list[tuple[str, ...]]:
    moves = []
    while exchange.is_planned:
        moves.append(exchange.next_move())
    return moves


@pytest.mark.parametrize(
    ("devices", "moves"),
    [(("0", "1"), [("0",), ("0", "1")]), (("0",), [("0", "1")]), (("1",), [("1", "0")])],
)
def test_a_worker_leaves_and_another_comes_or_just_comes(
    devices: tuple[str, ...], moves: list[tuple[str, ...]]
) -> None:
    exchange = Exchange()
    assert exchange.plan(ExchangeWorker("cpu"), roster_of(*devices), typed=False) is None
    assert moves_of(exchange) == moves


@pytest.mark.parametrize(("device_type", "typed"), [("cuda", False), ("cpu", True)])
def test_one_device_whose_neighbour_has_no_known_name_is_not_exchanged(device_type: str, typed: bool) -> None:
    exchange = Exchange()
    assert exchange.plan(ExchangeWorker(device_type), roster_of("0"), typed=typed) == NO_SECOND_DEVICE
    assert not exchange.is_planned


def test_the_first_report_of_an_early_call_counts_and_each_call_once() -> None:
    calls = EarlyCalls()
    first, again, second = EarlyResult(0, "1.5"), EarlyResult(0, "9.9"), EarlyResult(1, "NaN")
    assert [calls.add(result) for result in (first, again, second, second)] == [True, False, True, False]
    assert calls.results == (first, second)
