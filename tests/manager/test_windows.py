"""Maintenance windows: a device is out for a time, and jobs have left it before."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tests.manager.worlds import Starts, World, answering, job, starts, world
from virtualflow.cli.main import app
from virtualflow.errors import ConfigError, ManagerError
from virtualflow.manager.manager import Manager
from virtualflow.manager.windows import LEAD_SECONDS
from virtualflow.testing import FakeClock

__all__ = ["starts", "world"]
NOW = 1_700_000_000.0


def out(manager: Manager) -> set[str]:
    manager.tick()
    return set(manager.scheduler.placement.lost)


def test_a_device_is_out_in_its_window_also_under_the_next_manager(world: World, starts: Starts) -> None:
    clock = FakeClock(NOW)
    manager = world.manager("V100:2", clock=clock)
    job_id = manager.submit(job(demand=2))
    manager.plan_maintenance("V100:0", NOW + 1000.0, NOW + 2000.0)
    assert out(manager) == set()
    clock.now = NOW + 1000.0 - LEAD_SECONDS
    assert out(manager) == {"V100:0"}  # before it begins
    assert manager.records[job_id].devices == ("V100:1",)
    manager = world.manager("V100:2", clock=clock)
    assert out(manager) == {"V100:0"}
    clock.now = NOW + 2000.0
    assert out(manager) == set()
    assert manager.records.windows == []
    assert len(manager.records[job_id].devices) == 2


def test_what_was_taken_out_by_hand_stays_out(world: World, starts: Starts) -> None:
    clock = FakeClock(NOW)
    manager = world.manager("V100:2", clock=clock)
    manager.lose(["V100:0"])
    manager.plan_maintenance("V100:0", NOW, NOW + 100.0)
    assert out(manager) == {"V100:0"}
    clock.now = NOW + 200.0
    assert out(manager) == {"V100:0"}
    assert manager.records.windows == []


def test_what_is_put_back_by_hand_stays_in(world: World, starts: Starts) -> None:
    manager = world.manager("V100:2", clock=FakeClock(NOW))
    manager.plan_maintenance("V100:0", NOW, NOW + 100.0)
    assert out(manager) == {"V100:0"}
    manager.give_back(["V100:0"])
    assert out(manager) == set()


def test_windows_that_make_no_sense_are_refused(world: World) -> None:
    manager = world.manager("V100:2", clock=FakeClock(NOW))
    for device, begin, end, reason in (
        ("V100:9", NOW, NOW + 1.0, "there is no device"),
        ("V100:0", NOW + 9.0, NOW + 1.0, "ends before it begins"),
        ("V100:0", NOW - 9.0, NOW - 1.0, "is over already"),
    ):
        with pytest.raises(ManagerError, match=reason):
            manager.plan_maintenance(device, begin, end)


def test_a_window_is_planned_and_seen_at_the_command_line(world: World, starts: Starts) -> None:
    manager = world.manager("V100:2")

    def vf(*words: str) -> str:
        result = CliRunner().invoke(app, words, env={"COLUMNS": "200", "TERM": "dumb"})
        assert result.exit_code == 0, (result.output, result.exception)
        return result.stdout

    with answering(manager):
        assert "out from" in vf("devices", "--drain", "V100:0", "--from", "2h", "--until", "3h")
        begin, end = json.loads(vf("devices", "--json"))[0]["maintenance"]
        assert end - begin == pytest.approx(3 * 3600, abs=60)  # from its begin on
        assert "out from" not in vf("devices", "--return", "V100:0")
        refused = CliRunner().invoke(app, ["devices", "--drain", "V100:0", "--from", "2h"])
        assert isinstance(refused.exception, ConfigError)
        assert "give --until, too" in str(refused.exception)


def test_windows_that_overlap_are_one_and_later_ones_stay_planned(world: World, starts: Starts) -> None:
    clock = FakeClock(NOW)
    manager = world.manager("V100:2", clock=clock)
    for begin, end in ((0.0, 100.0), (50.0, 300.0), (90_000.0, 90_100.0)):
        manager.plan_maintenance("V100:0", NOW + begin, NOW + end)
    for at in (0.0, 60.0, 100.0, 299.0):
        clock.now = NOW + at
        assert out(manager) == {"V100:0"}, at
        manager = world.manager("V100:2", clock=clock)
    clock.now = NOW + 300.0
    assert out(manager) == set()
    clock.now = NOW + 90_000.0
    assert out(manager) == {"V100:0"}


def test_a_window_that_is_open_may_get_another_end(world: World, starts: Starts) -> None:
    clock = FakeClock(NOW)
    manager = world.manager("V100:2", clock=clock)
    manager.plan_maintenance("V100:0", NOW + 30.0, NOW + 100.0)
    assert out(manager) == {"V100:0"}
    manager.plan_maintenance("V100:0", NOW + 30.0, NOW + 200.0)
    clock.now = NOW + 150.0
    assert out(manager) == {"V100:0"}
    clock.now = NOW + 200.0
    assert out(manager) == set()


def test_what_is_taken_out_by_hand_in_a_window_stays_out(world: World, starts: Starts) -> None:
    clock = FakeClock(NOW)
    manager = world.manager("V100:2", clock=clock)
    manager.plan_maintenance("V100:0", NOW, NOW + 100.0)
    assert out(manager) == {"V100:0"}
    manager.lose(["V100:0"])
    clock.now = NOW + 200.0
    assert out(manager) == {"V100:0"}
    assert manager.records.windows == []
