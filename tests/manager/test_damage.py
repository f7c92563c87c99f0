"""A manager among damaged files, silent coordinators and lost records: unknown is not "ended", and one job's damage
is its own."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.test_losses import Driven
from tests.manager.managed import until
from tests.manager.worlds import Starts, World, job, launched, starts, world
from virtualflow.cluster.job import Job
from virtualflow.cluster.messages import DevicesJoined, JobArrived, JobsRestored
from virtualflow.cluster.policies import registry
from virtualflow.cluster.policies.base import Decision, Grant, Policy
from virtualflow.cluster.scheduler import Scheduler
from virtualflow.cluster.snapshot import Snapshot
from virtualflow.cluster.throughput.model import Profiled
from virtualflow.core.devices import parse_pools
from virtualflow.core.job_state import JobState
from virtualflow.errors import DamagedError, LaunchError, RecordsError
from virtualflow.job import checkpoints, control, launch
from virtualflow.job.folder import JobFolder, JobSpec, write_json
from virtualflow.job.status import JobStatus, WorkerStatus
from virtualflow.job.wire_messages import GetStatus
from virtualflow.manager import description, lifecycle, safe_policy
from virtualflow.manager.fleet import End, Fleet
from virtualflow.manager.lifecycle import HowEnded
from virtualflow.manager.manager import Manager
from virtualflow.manager.records import Records
from virtualflow.testing import FakeClock

__all__ = ["starts", "world"]  # fixtures

DAMAGES = [b"", b"{", b"[]", b"null", b"{}", b"\xff\xfe", b"[" * 5000, b'{"state": 3, "workers": 4}']


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """This process can open nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def one_that_runs(manager: Manager, starts: Starts) -> str:
    job_id = manager.submit(job(virtual_nodes=1))
    manager.tick()
    assert starts.made[-1][0] == job_id
    return job_id


def test_what_can_not_be_read_is_read_again_and_a_finished_job_is_not_run_again(world: World, starts: Starts) -> None:
    manager = world.manager()
    job_id = one_that_runs(manager, starts)
    with launched(manager, starts):
        manager.fleet.folder(job_id).write_state(JobStatus(JobState.DONE))
    starts.processes[0].kill()
    with no_descriptors():
        manager.tick()
        assert manager.records[job_id].state == "RUNNING"
        assert "Too many open files" in manager.problem_of(job_id)
    manager.tick()
    assert (manager.records[job_id].state, manager.records[job_id].launches) == ("DONE", 1)
    assert manager.problem_of(job_id) == ""


def test_whether_a_job_runs_is_never_guessed(vf_home: Path) -> None:
    folder = JobFolder(vf_home / "jobs" / "a")
    folder.create(JobSpec.of("a", __file__, (), ("0",)))
    with folder.locked(), no_descriptors():
        for look in (folder.is_locked, folder.read_state, folder.read_counts):
            with pytest.raises(OSError, match="Too many open files"):
                look()


def test_a_removed_lock_is_still_held_by_whoever_runs_the_job(world: World, starts: Starts) -> None:
    manager = world.manager()
    job_id = one_that_runs(manager, starts)
    folder = manager.fleet.folder(job_id)
    with launched(manager, starts):
        folder.lock.unlink()
        manager.tick()  # would wait for the coordinator
        assert folder.is_locked()
        for next_one in (manager, world.manager()):
            next_one.tick()
            assert (next_one.records[job_id].state, len(starts.made)) == ("RUNNING", 1)
        with pytest.raises(LaunchError, match="is running already"), folder.locked():
            pass
        folder.lock.touch()  # whoever puts a new one there does not set the job free
        with pytest.raises(LaunchError, match="is running already"), folder.locked():
            pass
    assert not folder.is_locked()


@pytest.mark.parametrize("name", ["job.json", "state.json", "launch.json", description.SUBMITTED])
def test_each_job_s_damage_is_its_own(world: World, starts: Starts, name: str) -> None:
    manager = world.manager()
    ids = [one_that_runs(manager, starts) for _ in range(2)]
    waiting = manager.submit(job(demand=4, min=4, virtual_nodes=4))
    damaged = manager.fleet.folder(ids[0])
    with launched(manager, starts):
        for damage in DAMAGES:
            for job_id in (ids[0], waiting):
                (manager.fleet.folder(job_id).path / name).write_bytes(damage)
            manager.tick()
            manager = world.manager()
            manager.tick()
            assert [manager.records[each].state for each in (*ids, waiting)] == ["RUNNING", "RUNNING", "QUEUED"]
            assert len({*manager.records[ids[0]].devices, *manager.records[ids[1]].devices}) == 2
            damaged.read_state()
        for path in manager.fleet.folder(ids[0]).path.glob(name):
            path.unlink()
        manager = world.manager()
        manager.tick()
        assert manager.records[ids[0]].state == "RUNNING"
        manager.fleet.folder(ids[1]).write_state(JobStatus(JobState.DONE))
    manager.tick()
    assert manager.records[ids[1]].state == "DONE"


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_job_whose_end_nobody_can_tell_waits_for_a_decision(world: World, starts: Starts, damage: bytes) -> None:
    manager = world.manager()
    job_id = one_that_runs(manager, starts)
    folder = manager.fleet.folder(job_id)
    with launched(manager, starts):
        (folder.path / "state.json").write_bytes(damage)
    starts.processes[0].kill()
    manager.tick()
    record = manager.records[job_id]
    assert (record.state, record.devices, len(starts.made)) == ("PAUSED", (), 1)
    assert "how is not known" in (record.trouble or "")
    assert f"vf resume {job_id}" in (record.trouble or "")
    whole = manager.submit(job(demand=4, min=4))
    assert len(manager.records[whole].devices) == 4  # its device is free
    manager.cancel(whole)
    manager.resume(job_id)
    manager.tick()
    record = manager.records[job_id]
    assert (record.state, record.trouble, len(starts.made)) == ("RUNNING", None, 2)


def test_json_is_whole_or_not_there_and_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda number: (calls.append("sync"), sync(number))[1])
    monkeypatch.setattr(os, "replace", lambda *paths: (calls.append("rename"), replace(*paths))[1])
    write_json(tmp_path / "a.json", {"a": 1})
    assert calls == ["sync", "rename", "sync"]
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": 1}
    (tmp_path / "job.json").touch()
    with pytest.raises(DamagedError, match=r"job.json is damaged"):
        JobFolder(tmp_path).spec()


def test_nobody_waits_for_coordinators_that_hang(world: World, starts: Starts) -> None:
    manager = world.manager(devices="6", answer_seconds=1000.0)  # whoever waits for one never returns
    ids = [one_that_runs(manager, starts) for _ in range(6)]
    with launched(manager, starts), contextlib.ExitStack() as owned:
        hanging = [owned.enter_context(control.listen(manager.fleet.folder(job_id))) for job_id in ids]
        for job_id in ids:
            manager.pause(job_id)
        manager.tick()
        manager.tick()
        asked = until(lambda: [connection for each in hanging if (connection := accepted(each))], 60)
        for connection in asked:
            connection.close()
        assert [manager.records[job_id].wish for job_id in ids] == ["pause"] * 6
        for each in hanging:  # so that the threads that ask come to an end
            until(lambda each=each: (each.close(), True)[1])


def accepted(listening: socket.socket) -> socket.socket | None:
    try:
        return listening.accept()[0]
    except BlockingIOError:
        return None


def test_no_job_gets_a_device_that_a_silent_coordinator_may_have_been_moved_to(world: World, starts: Starts) -> None:
    manager = world.manager(devices="2", answer_seconds=0.05)
    first = one_that_runs(manager, starts)
    with launched(manager, starts), control.listen(manager.fleet.folder(first)):
        at = manager.records[first].devices[0]
        workers = (WorkerStatus(at, virtual_nodes=(0, 1)),)
        status = JobStatus(JobState.RUNNING, virtual_nodes=2, workers=workers, wanted=(at,))
        manager.fleet.folder(first).write_state(status)
        manager.records.update(first, demand=2)
        manager.tick()  # it is to grow, and does not answer
        assert sorted(manager.records[first].devices) == ["0", "1"]
        manager.tick()
        assert manager.fleet.taken(()) == {"0", "1"}
        manager.cap(first, 1)
        assert manager.fleet.taken(()) == {"0", "1"}


def test_records_are_closed_when_their_copy_is_complete(vf_home: Path) -> None:
    vf_home.mkdir()
    records = Records(vf_home / "jobs.sqlite")
    records.backups.make_if_due(now=0.0)
    records.close()
    assert [copy.suffix for copy in records.backups.folder.iterdir()] == [".sqlite"]


def test_what_a_job_leaves_behind_does_not_keep_its_devices(vf_home: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Something that the script has started, and that outlives coordinator and workers, holds the lock."""
    clock = FakeClock()
    fleet = Fleet(patience_seconds=1.0, clock=clock)
    folder = fleet.folder("a")
    folder.create(JobSpec.of("a", __file__, (), ("0",)))
    with folder.locked() as lock:
        command = [sys.executable, "-c", "import time; time.sleep(1000)"]
        left = subprocess.Popen(command, pass_fds=[lock])
        folder.write_state(JobStatus(JobState.DONE))
        reader = folder.lock.open()  # a verb that just looks
    fleet.adopt("a", ["0"])
    with reader:

        def look_a_minute_later() -> End | None:
            clock.now += 60.0
            return fleet.look("a")

        end = until(look_a_minute_later)
    assert end.how == "done"
    assert left.wait() == -signal.SIGKILL
    assert caplog.messages == [f"job a does not answer: SIGKILL to what is left of it, process {left.pid}"]


class Breaks(Policy):
    """Gives each job one device while there are some, until it is told to break."""

    name = "breaks"
    how = "well"

    def order(self, state: Any, snapshot: Snapshot) -> tuple[Any, ...]:
        if self.how == "orders":
            raise KeyError("order")
        return (state.job.arrival_seconds,)

    def forget(self, job_id: str) -> None:
        if self.how == "forgets":
            raise RuntimeError("forget")

    def allocate(self, snapshot: Snapshot) -> Decision:
        if self.how == "raises":
            raise ZeroDivisionError("division by zero")
        if self.how == "grants too much":
            return Decision({each.id: Grant.of(99) for each in (*snapshot.running.values(), *snapshot.queue)})
        if self.how == "grants to nobody":
            return Decision({"nobody": Grant.of(1)})
        first = list(snapshot.queue)[: sum(snapshot.free.values())]
        return Decision({each.id: Grant.of(1) for each in first})


@pytest.mark.parametrize("how", ["raises", "orders", "forgets", "grants too much", "grants to nobody"])
def test_a_policy_that_breaks_changes_nothing_and_ends_nobody(
    world: World, starts: Starts, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock(1000.0)
    policy = Breaks()
    manager = world.manager(devices="3", policy=policy, clock=clock)
    ids = [one_that_runs(manager, starts) for _ in range(2)]
    had = {each: manager.records[each].devices for each in ids}
    policy.how = how
    third = manager.submit(job(virtual_nodes=1))
    manager.tick()
    if how != "forgets":
        assert ["the policy breaks has failed" in each for each in manager.problems] == [True]
    manager.set_priority(ids[0], 5.0)
    if how != "orders":
        assert ["the policy breaks has failed" in each for each in manager.problems] == [True]
    assert {each: manager.records[each].devices for each in ids} == had
    assert "Jobs keep their devices" in caplog.text
    lost = had[ids[0]][0]
    manager.lose([lost])  # what is gone is gone, whatever the policy says
    assert lost not in manager.records[ids[0]].devices
    assert manager.records[ids[1]].devices == had[ids[1]]
    manager.give_back([lost])
    manager.cancel(ids[1])
    again = world.manager(devices="3", policy=policy, clock=clock)  # a manager starts with it as well
    again.tick()
    for each in (manager, again):
        policy.how = "well"
        clock.now += 100.0  # it is asked again, though nothing has happened
        each.tick()
        assert each.problems == []
        assert each.records[third].devices
        assert each.records[ids[0]].devices


def test_a_scheduler_that_is_made_anew_has_each_job_where_it_was_co_located_and_new_machines_included() -> None:
    pools = tuple(parse_pools("V100:2"))
    old = Scheduler(pools, Breaks(), Profiled())
    old.handle(DevicesJoined(1.0, ("P100:0", "P100:1")))
    host, beside, waits = (Job(name, 0.0, 2, 100.0) for name in ("host", "beside", "waits"))
    jobs = [(host, ("V100:0", "P100:1"), None), (beside, ("V100:0",), "host"), (waits, (), None)]
    new = safe_policy.made_anew(old, pools, {"P100:0"}, 2.0, jobs)
    assert new.jobs["host"].devices == ("V100:0", "P100:1")
    assert (new.jobs["beside"].devices, new.jobs["beside"].host) == (("V100:0",), "host")
    assert new.jobs["host"].co_located == ("beside",)
    assert [state.id for state in new.snapshot().queue] == ["waits"]
    assert (new.placement.lost, new.snapshot().free) == ({"P100:0"}, {"V100": 1, "P100": 0})
    assert new.policy is old.policy


def test_a_scheduler_that_is_made_anew_knows_the_service_that_jobs_have_had() -> None:
    pools = tuple(parse_pools("V100:2"))
    old = Scheduler(pools, registry.make("fifo"), Profiled())
    first = Job("first", 0.0, 2, 100.0)
    old.handle(JobsRestored(0.0, ((first, ("V100:0", "V100:1")),), ()))
    new = safe_policy.made_anew(old, pools, (), 50.0, [(first, ("V100:0", "V100:1"), None)])
    assert new.jobs["first"].attained(50.0) == old.jobs["first"].attained(50.0) == 100.0


@pytest.mark.parametrize("policy", registry.BUILT_IN)
def test_under_a_scheduler_that_is_made_anew_jobs_that_wait_are_started_again(policy: str) -> None:
    driven, pools = Driven(policy), tuple(parse_pools("V100:4"))
    driven.brain = Scheduler(pools, driven.brain.policy, Profiled())
    jobs = [Job(name, 0.0, 2, 1e6) for name in "ab"]
    driven.tell(*(JobArrived(0.0, job) for job in jobs))
    assert driven.counts() == {"a": 2, "b": 2}
    driven.brain = safe_policy.made_anew(driven.brain, pools, (), driven.now, [(job, (), None) for job in jobs])
    driven.wakes = [driven.now + 1.0]
    driven.tell()
    assert driven.counts() == {"a": 2, "b": 2}


def test_nobody_waits_while_a_checkpoint_is_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = world.manager(devices="1")
    waits = [manager.submit(job()) for _ in range(2)][1]
    manager.pause(waits)
    free: list[bool] = []

    def ask() -> None:
        free.append(manager.lock.acquire(timeout=1.0))
        if free[0]:
            manager.lock.release()

    def chosen(folder: JobFolder, choice: str) -> Path:
        asking = threading.Thread(target=ask)
        asking.start()
        asking.join()
        raise LaunchError(f"no {choice}")

    monkeypatch.setattr(checkpoints, "chosen", chosen)
    with pytest.raises(LaunchError, match="no 5"):
        manager.resume(waits, "5")
    assert free == [True]


def test_a_new_manager_knows_the_service_that_jobs_have_had(world: World) -> None:
    clock = FakeClock(1000.0)
    manager = world.manager(policy="tiresias", clock=clock)
    served, waits = (manager.submit(job(demand=4)) for _ in range(2))
    manager.records.note_devices(served, ("0", "1", "2"), 1000.0)
    manager.records.note_devices(served, ("0",), 1100.0)  # has it still
    clock.now = 1150.0
    again = world.manager(policy="tiresias", clock=clock)
    attained = {name: state.attained_before for name, state in again.scheduler.jobs.items()}
    assert attained == {served: 3 * 100.0 + 50.0, waits: 0.0}


def test_time_goes_on_after_the_clock_was_set_back(world: World, starts: Starts) -> None:
    clock = FakeClock(10_000.0)
    manager = world.manager(policy="las", clock=clock)
    first = manager.submit(job(demand=4, virtual_nodes=4))
    clock.now = 100.0
    second = manager.submit(job(demand=4, virtual_nodes=4))
    clock.now += 720.0  # two rounds
    manager.tick()
    assert "RUNNING" in (manager.records[first].state, manager.records[second].state)
    assert manager.records[second].submitted == 100.0  # as people see it
    jobs = manager.scheduler.jobs
    assert jobs[first].job.arrival_seconds <= jobs[second].job.arrival_seconds  # the first one came first
    result = world.manager(policy="fifo", clock=clock).scheduler.jobs
    assert result[first].job.arrival_seconds <= result[second].job.arrival_seconds


def stray_of(manager: Manager, vf_home: Path, name: str) -> JobFolder:
    """A folder that a submit has made which was never answered."""
    folder = JobFolder(vf_home / "jobs" / name)
    submitted = job(demand=2, priority=3.0)
    record = submitted.record(name, 1.0)
    folder.make()
    description.write_folder(folder, record, manager.reconciler.spec(record, ()), submitted)
    return folder


def test_a_manager_without_its_records_deletes_nothing_and_takes_in_what_runs(
    world: World, starts: Starts, vf_home: Path
) -> None:
    manager = world.manager()
    running = manager.submit(job(virtual_nodes=2, demand=2, priority=7.0, name="precious"))
    manager.tick()
    waiting = manager.submit(job(demand=4, min=4))
    devices = manager.records[running].devices
    with launched(manager, starts):
        workers = tuple(WorkerStatus(device, virtual_nodes=(0,)) for device in devices)
        status = JobStatus(JobState.RUNNING, virtual_nodes=2, workers=workers, wanted=tuple(devices))
        manager.fleet.folder(running).write_state(status)
        world.path.unlink()
        again = world.manager()
        again.tick()
        record = again.records[running]
        assert (record.state, record.devices) == ("RUNNING", devices)
        assert (record.name, record.terms.priority) == ("precious", 7.0)
        assert set(devices) <= again.fleet.taken(())
        assert [each["id"] for each in again.orphans()] == [waiting]
        assert again.orphans()[0]["state"] == "QUEUED"
        assert (again.fleet.folder(waiting).snapshot / "job.py").exists()
        assert len(starts.made) == 1
        again.take_in(waiting)
        assert (again.records[waiting].state, again.records[waiting].terms.min, again.orphans()) == ("PAUSED", 4, [])


def test_strays_of_any_kind_are_listed_and_kept(world: World, starts: Starts, vf_home: Path) -> None:
    manager = world.manager()
    kept = manager.submit(job())
    stray_of(manager, vf_home, "stray")
    other = JobFolder(vf_home / "jobs" / "other")
    other.make()
    (other.path / "job.json").write_text('{"of": "another version"}')
    damaged = stray_of(manager, vf_home, "damaged")
    for path in damaged.path.glob("*.json"):
        path.write_bytes(b"")
    JobFolder(vf_home / "jobs" / "run").create(JobSpec.of("run", __file__, (), ("0",)))  # by `vf run`: no orphan
    again = world.manager()
    again.tick()
    listed = {each["id"]: each for each in again.orphans()}
    assert sorted(listed) == ["damaged", "other", "stray"]
    assert (listed["stray"]["name"], listed["stray"]["state"]) == ("job", "QUEUED")
    assert "damaged" in listed["damaged"]["reason"]
    assert sorted(path.name for path in (vf_home / "jobs").iterdir()) == sorted([*listed, "run", kept])


def test_a_job_that_comes_to_light_later_is_taken_in(world: World, starts: Starts, vf_home: Path) -> None:
    clock = FakeClock(1000.0)
    manager = world.manager(clock=clock)
    folder = stray_of(manager, vf_home, "late")
    with folder.locked():
        folder.write_state(JobStatus(JobState.RUNNING, virtual_nodes=1, workers=(WorkerStatus("1"),)))
        clock.now += 20.0
        manager.tick()
        assert (manager.records["late"].state, manager.fleet.holds("late")) == ("RUNNING", ("1",))


def test_an_older_copy_of_the_records_runs_nothing_twice(world: World, starts: Starts, vf_home: Path) -> None:
    manager = world.manager()
    waits, ends, fails, runs = ids = [manager.submit(job(demand=1, virtual_nodes=1)) for _ in range(4)]
    backup = manager.records.backups.make()
    for job_id in (ends, fails):
        how = HowEnded.DONE if job_id == ends else HowEnded.FAILED
        manager.reconciler.change(job_id, lifecycle.Ended(how, 1.0, text="it went wrong"))
    newer = manager.submit(job())
    folder = manager.fleet.folder(runs)
    with folder.locked():
        folder.write_state(JobStatus(JobState.RUNNING, virtual_nodes=1, workers=(WorkerStatus("3"),)))
        for records in world.opened:
            records.close()
        manager.records.backups.restore(backup)
        again = world.manager()
        again.tick()
        states = {job_id: again.records[job_id].state for job_id in ids}
        assert states == {waits: "RUNNING", ends: "DONE", fails: "FAILED", runs: "RUNNING"}
        assert again.records[fails].failure == "it went wrong"
        assert again.records[runs].devices == ("3",)
        assert [each["id"] for each in again.orphans()] == [newer]
        assert [job_id for job_id, _ in starts.made] == [waits]


def test_records_are_copied_daily_and_before_another_version_writes_them(
    world: World, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock(1_000_000_000.0)
    manager = world.manager(clock=clock)
    job_id = manager.submit(job())
    backups = manager.records.backups

    def daily() -> list[Path]:
        return [path for path in backups.newest_first() if path.stem.endswith("daily")]

    manager.tick()
    until(lambda: len(daily()) == 1)
    os.utime(daily()[0], (clock.now, clock.now))
    for _ in range(3):
        clock.now += 1000.0
        manager.tick()
    assert len(daily()) == 1
    os.utime(daily()[0].rename(daily()[0].with_name("jobs-20010101-000000-daily.sqlite")), (clock.now, clock.now))
    clock.now += 86_400.0
    manager.tick()
    until(lambda: len(daily()) == 2)
    assert daily()[0].stat().st_mode & 0o777 == 0o600
    assert backups.folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr("virtualflow.manager.records.__version__", "99.0")
    assert world.manager().records[job_id].state == "RUNNING"
    (before,) = (path for path in backups.newest_first() if "before-99.0" in path.name)
    with contextlib.closing(sqlite3.connect(before)) as connection:
        assert connection.execute("SELECT id FROM jobs").fetchall() == [(job_id,)]
    world.manager()
    assert len([path for path in backups.newest_first() if "before" in path.name]) == 1


def test_of_many_copies_the_newest_are_kept(world: World) -> None:
    backups = world.manager().records.backups
    backups.folder.mkdir()
    for day in range(1, 29):
        (backups.folder / f"jobs-200101{day:02d}-000000-daily.sqlite").touch()
    newest = backups.make()
    assert len(backups.newest_first()) == 14
    assert backups.newest_whole() == newest


def test_records_with_a_damaged_page_are_refused_with_advice(world: World) -> None:
    manager = world.manager()
    for _ in range(30):
        manager.submit(job())
    for records in world.opened:
        records.close()
    good = world.path.read_bytes()

    def damage() -> None:
        with world.path.open("r+b") as file:
            file.seek(4096 * 3)
            file.write(os.urandom(4096 * 4))

    damage()
    with pytest.raises(RecordsError, match=r"are damaged: .*There is no backup"):
        Records(world.path)
    world.path.write_bytes(good)
    backup = world.manager().records.backups.make()
    world.opened[-1].close()
    damage()
    with pytest.raises(RecordsError, match=r"`vf cluster restore` .*" + backup.name):
        Records(world.path)
    world.path.write_bytes(b"no database at all, and long enough to be taken for one" * 100)
    with pytest.raises(RecordsError, match="are damaged"):
        Records(world.path)


def test_one_damaged_record_is_left_alone_and_told(world: World, starts: Starts) -> None:
    manager = world.manager()
    ids = [manager.submit(job()) for _ in range(4)]
    damages = ("{", '{"id": 3}', json.dumps({"of": "another version"}))
    with contextlib.closing(sqlite3.connect(world.path)) as connection, connection:
        for job_id, text in zip(ids, damages, strict=False):
            connection.execute("UPDATE jobs SET record=? WHERE id=?", (text, job_id))
        (text,) = connection.execute("SELECT record FROM jobs WHERE id=?", (ids[3],)).fetchone()
        newer = json.dumps(json.loads(text) | {"what_a_newer_version_knows": 1})
        connection.execute("UPDATE jobs SET record=? WHERE id=?", (newer, ids[3]))
    again = world.manager()
    assert [record.id for record in again.records.all()] == ids[3:]
    assert all(job_id in again.problems[0] for job_id in ids[:3])
    assert [each["id"] for each in again.orphans()] == sorted(ids[:3])
    again.tick()
    with contextlib.closing(sqlite3.connect(world.path)) as connection:
        assert connection.execute("SELECT record FROM jobs WHERE id=?", (ids[0],)).fetchone() == ("{",)


def test_an_answer_that_makes_no_sense_is_no_traceback(vf_home: Path) -> None:
    folder = JobFolder(vf_home / "jobs" / "a")
    folder.create(JobSpec.of("a", __file__, (), ("0",)))
    for answer in (b"[]\n", b"nonsense\n", b"\xff\n", b"null\n"):
        with control.listen(folder) as listening:
            listening.setblocking(True)

            def give(answer: bytes = answer, listening: socket.socket = listening) -> None:
                connection, _ = listening.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(answer)

            thread = threading.Thread(target=give)
            thread.start()
            with pytest.raises(LaunchError, match="no answer that makes sense"):
                control.ask(folder, GetStatus())
            thread.join()
    assert launch.take(folder, "token") == (False, None)
