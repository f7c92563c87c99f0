"""A manager that dies between any two of its steps, without processes: what it has written, the next one finds."""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.manager.managed import until
from tests.manager.worlds import SCRIPT, Starts, World, job, launched, starts, world
from virtualflow.core.job_description import JobDescription
from virtualflow.core.job_state import JobState
from virtualflow.errors import ConfigError, ManagerError, RecordsError
from virtualflow.job import control, launch
from virtualflow.job.folder import JobFolder
from virtualflow.job.status import JobStatus
from virtualflow.manager import lifecycle
from virtualflow.manager.submission import Submission
from virtualflow.testing import FakeClock

__all__ = ["starts", "world"]  # fixtures


def test_a_launch_that_was_written_and_not_made_is_made_by_the_next_manager(world: World, starts: Starts) -> None:
    first = world.manager()
    job_id = first.submit(job())
    first.tick()
    assert first.records[job_id].state == "RUNNING"
    (old,) = starts.made  # it starts, and its manager dies
    second = world.manager()
    second.tick()
    assert [made[0] for made in starts.made] == [job_id, job_id]
    new = starts.made[-1]
    assert new != old
    folder = JobFolder(second.fleet.folder(job_id).path)
    with folder.locked():  # the first coordinator comes after all: the job is another's
        assert launch.take(folder, old[1]) == (False, None)
        assert launch.take(folder, new[1]) == (True, None)
    assert second.records[job_id].crashes == 0


def test_a_coordinator_that_comes_while_the_next_manager_looks_is_taken_over(world: World, starts: Starts) -> None:
    job_id = (first := world.manager()).submit(job())
    first.tick()
    folder = first.fleet.folder(job_id)
    second = world.manager()
    with folder.locked():
        assert launch.take(folder, starts.made[0][1])[0]
        second.tick()
        assert second.records[job_id].state == "RUNNING"
        assert len(starts.made) == 1
        folder.write_state(JobStatus(JobState.DONE))
    second.tick()
    assert second.records[job_id].state == "DONE"
    third = world.manager()
    third.tick()
    assert (third.records[job_id].state, len(starts.made)) == ("DONE", 1)


def test_a_coordinator_that_takes_its_launch_between_two_looks_is_not_waited_for(
    world: World, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = world.manager()
    job_id = manager.submit(job())
    manager.tick()
    folder = manager.fleet.folder(job_id)
    locks = []

    def comes_now(self: JobFolder) -> bool:
        if not locks:
            locks.append(folder.locked())
            locks[0].__enter__()
            launch.take(folder, starts.made[0][1])
            return False  # as it was a moment ago
        return True

    monkeypatch.setattr(JobFolder, "is_locked", comes_now)
    manager.tick()  # would hang if it believed that the coordinator has ended
    assert manager.records[job_id].state == "RUNNING"
    locks[0].__exit__(None, None, None)


def test_no_two_jobs_are_found_with_the_same_device_wherever_a_manager_dies(world: World, starts: Starts) -> None:
    manager = world.manager()
    ids = [manager.submit(job(demand=4, virtual_nodes=4, priority=p)) for p in (1.0, 1.0, 5.0)]
    manager.tick()
    with sqlite3.connect(world.path) as connection:
        saved = [json.loads(text) for (text,) in connection.execute("SELECT record FROM jobs")]
    connection.close()
    devices = [device for record in saved for device in record["devices"]]
    assert len(devices) == len(set(devices)) == 4
    # And if a full disk had left such records, the first one keeps its devices.
    for record in manager.records.all():
        manager.records.update(record.id, state=JobState.RUNNING, devices=("0", "1"))
    again = world.manager()
    given = [device for job_id in ids for device in again.records[job_id].devices]
    assert len(given) == len(set(given))


def test_devices_that_are_gone_when_the_next_manager_comes_are_nobodys(world: World, starts: Starts) -> None:
    manager = world.manager()
    first = manager.submit(job(demand=4, virtual_nodes=4))
    manager.tick()
    taken = manager.records[first].devices[0]
    with launched(manager, starts):
        manager.lose([taken])
        assert taken not in manager.records[first].devices
        again = world.manager()
        assert again.records[first].devices == manager.records[first].devices
        assert again.scheduler.placement.lost == {taken}
        smaller = world.manager(devices="2")
        smaller.tick()
        assert len(smaller.records[first].devices) == 1
        assert (smaller.records[first].wish, len(starts.made)) == (None, 1)


def test_a_pause_can_be_taken_back_and_who_paused_has_no_claim_to_what_he_had(world: World, starts: Starts) -> None:
    manager = world.manager()
    first = manager.submit(job(demand=4, virtual_nodes=4))
    manager.tick()
    with launched(manager, starts):
        manager.pause(first)
        assert manager.records[first].devices == ()
        manager.resume(first)  # it is about to stop, and goes on then
        assert manager.records[first].wish == "suspend"
        assert len(manager.records[first].devices) == 4
        manager.pause(first)
        manager.fleet.folder(first).write_state(JobStatus(JobState.CANCELLED, asked=True))
    again = world.manager()
    again.tick()
    assert again.records[first].state == "PAUSED"
    second = again.submit(job(demand=4, min=4, virtual_nodes=4))
    again.resume(first)
    again.tick()
    assert (again.records[first].state, again.records[first].devices) == ("QUEUED", ())
    assert [job_id for job_id, _ in starts.made] == [first, second]


def asked_once(hanging: socket.socket) -> bool:
    try:
        hanging.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def test_a_coordinator_that_hangs_is_not_waited_for_at_every_turn(world: World, starts: Starts) -> None:
    manager = world.manager(fleet_clock=FakeClock(), answer_seconds=0.05)
    job_id = manager.submit(job(virtual_nodes=1))
    manager.tick()
    with launched(manager, starts), control.listen(manager.fleet.folder(job_id)) as hanging:
        manager.pause(job_id)
        for _ in range(5):
            manager.tick()
        until(lambda: asked_once(hanging))
        for _ in range(5):
            manager.tick()
        with pytest.raises(BlockingIOError):
            hanging.accept()
        assert manager.state_of(manager.records[job_id]) == "STARTING"


def test_a_stop_for_an_end_that_never_came_is_no_cancellation(world: World, starts: Starts) -> None:
    manager = world.manager()
    job_id = manager.submit(job(virtual_nodes=1))
    manager.tick()
    folder = manager.fleet.folder(job_id)
    with folder.locked():
        launch.take(folder, starts.made[0][1])
        manager.stop_jobs()
        assert manager.records[job_id].wish == "down"
        folder.write_state(JobStatus(JobState.CANCELLED, asked=True))
    again = world.manager()  # the first one was killed before it saw the job end
    again.tick()
    assert again.records[job_id].state == "RUNNING"
    assert again.records[job_id].launches == 2


@contextlib.contextmanager
def full(path: Path) -> Iterator[None]:
    """The database at *path* takes no record of a job."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TRIGGER full BEFORE INSERT ON jobs BEGIN SELECT RAISE(FAIL, 'it is full'); END")
        yield
        connection.execute("DROP TRIGGER full")


def test_without_a_place_for_the_intent_nothing_starts(world: World, starts: Starts) -> None:
    manager = world.manager()
    job_id = manager.submit(job())
    with full(world.path):
        manager.tick()
        manager.tick()
        assert starts.made == []
        assert not manager.fleet.folder(job_id).launch.exists()
        with pytest.raises(RecordsError, match=r"the job was not taken in: .* it is full"):
            manager.submit(job())
    assert len(list((world.path.parent / "jobs").iterdir())) == 1
    manager.tick()
    assert len(starts.made) == 1
    assert world.manager().records[job_id].state == "RUNNING"


def test_a_full_disk_is_noticed_before_it_hurts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("virtualflow.manager.manager.MIN_FREE_BYTES", 1 << 62)
    with pytest.raises(RecordsError, match=r"the disk of .* is full: \d+ MB are left. Running jobs continue; submits"):
        world.manager().submit(job())


def test_how_a_job_has_ended_finds_room_on_a_full_disk(vf_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = JobFolder(vf_home / "jobs" / "a")
    folder.path.mkdir(parents=True)
    folder.write_state(JobStatus(JobState.RUNNING, 7, reason="x" * 500))

    def no_room(path: Path, value: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("virtualflow.job.folder.write_json", no_room)
    folder.write_state(JobStatus(JobState.DONE, 7))
    assert folder.read_state() == JobStatus(JobState.DONE, 7)


def test_time_never_runs_backwards_whatever_is_done_to_the_clock(world: World, starts: Starts) -> None:
    clock = FakeClock(1000.0)
    manager = world.manager(clock=clock)
    first = manager.submit(job())
    manager.tick()
    clock.now = 10.0
    second = manager.submit(job())
    manager.tick()
    assert lifecycle.run_seconds(manager.records[first], clock.now) == 0.0
    assert manager.records[second].state == "RUNNING"
    again = world.manager(clock=clock)  # after a restart, too
    again.tick()
    again.cancel(first)


@pytest.mark.parametrize("policy", ["wfs", "srtf", "sjf", "priority", "fifo", "las", "tiresias", "ftf"])
def test_every_policy_runs_on_the_wall_clock(world: World, starts: Starts, policy: str) -> None:
    clock = FakeClock(1000.0)
    manager = world.manager(policy=policy, clock=clock)
    ids = [manager.submit(job(demand=2, virtual_nodes=2)) for _ in range(4)]
    for _ in range(5):
        clock.now += 400.0
        manager.tick()
    manager.set_priority(ids[0], 4.0)
    manager.cap(ids[1], 1)
    running = [record.id for record in manager.records.running()]
    assert len(running) >= 2
    again = world.manager(policy=policy, clock=clock)
    clock.now += 400.0
    again.tick()
    for job_id in ids:
        again.cancel(job_id)
    assert again.scheduler.jobs == {}


def test_two_jobs_that_are_to_change_places_do_not_wait_for_each_other(world: World, starts: Starts) -> None:
    manager = world.manager(devices="V100:1,P100:1")
    ids = [manager.submit(job(virtual_nodes=1)) for _ in range(2)]
    manager.tick()
    first, second = (manager.records[each] for each in ids)
    with manager.fleet.folder(first.id).locked(), manager.fleet.folder(second.id).locked():
        for record, (_, token) in zip((first, second), starts.made, strict=True):
            launch.take(manager.fleet.folder(record.id), token)
        manager.records.update(first.id, devices=second.devices)
        manager.records.update(second.id, devices=first.devices)
        manager.tick()
        assert "suspend" in [manager.records[each].wish for each in ids]


def test_what_a_manager_does_not_take(world: World) -> None:
    manager = world.manager()
    refused: dict[str, dict[str, Any]] = {
        "up to 64 letters": {"name": "../../etc/passwd"},
        "above 0": {"priority": -1.0},
        "a number above 0": {"priority": float("nan")},
        "the cluster has 4 device": {"demand": 5},
        "does not fit a demand": {"min": 2},
        "can't run on 2 device": {"demand": 2, "min": 2, "virtual_nodes": 1},
        "must be at least a millisecond": {"expect_seconds": 0.0},
        "a zero byte": {"arguments": ("\0",)},
        "environment variable": {"environment": {"a=b": ""}},
    }
    for reason, options in refused.items():
        with pytest.raises((ManagerError, ConfigError), match=reason):
            manager.submit(job(**options))
    for modules in ({"../outside.py": "", **SCRIPT}, {"a" * 300 + ".py": "", **SCRIPT}, {"a": "", "a/b": "", **SCRIPT}):
        with pytest.raises(ManagerError, match="the job was not taken in"):
            manager.submit(Submission(JobDescription("job.py"), modules))
    with pytest.raises(ManagerError, match="not among the modules"):
        manager.submit(Submission(JobDescription("job.py"), {}))
    assert manager.records.all() == []
    assert list((world.path.parent / "jobs").glob("*")) == []
