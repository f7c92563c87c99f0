"""What the roster is made of: joiners, departures, and the change in flight."""

from __future__ import annotations

from virtualflow.core.departures import LeaveNotices, LossReports
from virtualflow.core.generation import Cause, Generation
from virtualflow.core.joiners import Joiners
from virtualflow.core.pending_change import PendingChange
from virtualflow.core.roster_actions import KillWorker, StartWorker


def test_a_joiner_starts_waits_and_is_admitted() -> None:
    joiners = Joiners()
    assert joiners.start(["1", "2"]) == [StartWorker("1"), StartWorker("2")]
    joiners.is_ready("1", 5.0)
    joiners.is_ready("2", 9.0)
    assert (joiners.starting, joiners.waiting, joiners.waiting_since) == (set(), {"1", "2"}, 5.0)
    joiners.admit(["1"])
    assert joiners.all == {"2"}


def test_the_end_of_a_dismissed_joiner_is_known_as_such_once() -> None:
    joiners = Joiners()
    joiners.start(["1", "2"])
    assert joiners.dismiss({"2", "1"}) == [KillWorker("1"), KillWorker("2")]
    assert [joiners.remove("1"), joiners.remove("1")] == [True, False]
    joiners.start(["2"])  # it is wanted again
    assert not joiners.remove("2")


def test_reports_are_overdue_some_time_after_the_first() -> None:
    reports = LossReports()
    everybody = ["0", "1", "2"]
    assert not reports.are_overdue(everybody, 1000.0, 1.0)
    reports.add("0", 3, 10.0)
    reports.add("0", 3, 18.0)  # the first report counts
    assert not reports.are_overdue(everybody, 15.0, 5.0)
    assert reports.are_overdue(everybody, 15.1, 5.0)
    reports.clear()
    assert not reports.are_overdue(everybody, 1000.0, 1.0)


def test_reports_of_all_are_waited_for_no_longer_at_the_first_try_only() -> None:
    reports = LossReports()
    for device in "012":
        reports.add(device, 3, 10.0)
    assert reports.are_overdue(["0", "1", "2"], 10.0, 5.0)
    reports.is_second_try = True  # or a group that fails at once would be formed all the time
    assert not reports.are_overdue(["0", "1", "2"], 10.0, 5.0)


def test_a_report_of_a_loss_that_all_know_of_shows_only_that_its_worker_is_there() -> None:
    reports = LossReports(newest_loss=4, is_second_try=True)
    reports.add("0", 3, 10.0)
    assert not reports.are_overdue(["0", "1"], 1000.0, 1.0)
    assert reports.stuck(["0", "1"]) == ["1"]


def test_nobody_is_stuck_at_the_first_try() -> None:
    reports = LossReports()
    reports.add("0", 3, 10.0)
    assert reports.stuck(["0", "1"]) == []


def test_leave_notices_are_kept_by_device() -> None:
    notices = LeaveNotices()
    notices.add("1", 7.0)
    notices.add("2", 8.0)
    assert notices.newest_at == 8.0
    assert notices.include_any(["0", "1"])
    assert not notices.include_all(["0", "1"])
    notices.remove(["1"])
    assert notices.include_all(["2"])
    assert not notices.include_any(["0", "1"])


def test_a_change_is_formed_when_every_worker_is_in_its_group() -> None:
    change = PendingChange(Generation(2, Cause.RESIZE, ("0", "1", "2"), joining=("1", "2")))
    change.has_state("2")
    assert (change.joiners_with_state, change.joiners_without_state) == (("2",), ("1",))
    for device in "01":
        change.has_formed(device)
    assert not change.is_formed
    change.has_formed("2")
    assert change.is_formed
