"""What a manager knows of the speeds of its jobs, and from where."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.manager.worlds import Starts, World, job, launched, starts, world
from virtualflow.cluster.messages import JobChanged
from virtualflow.core import profile
from virtualflow.core.job_state import JobState
from virtualflow.core.profile import Communication, Point, Profile, Workload
from virtualflow.events import STREAM, RunStarted, StepDone
from virtualflow.events.event_types import encode
from virtualflow.job.status import JobStatus
from virtualflow.manager import record as recorded
from virtualflow.manager.api.views import ClusterSource
from virtualflow.manager.manager import Manager
from virtualflow.system.home import profiles_of

__all__ = ["starts", "world"]

DEVICES, NODES = "P100:2,K80:2", 8
TRUE = {"P100": 0.1, "K80": 0.4}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def write(manager: Manager, job_id: str, mapping: Sequence[str], seconds: float, steps: int = 20) -> None:
    """What a job that trains on *mapping* leaves in its stream."""
    folder = manager.fleet.folder(job_id)
    lines = [encode(RunStarted({}, list(dict.fromkeys(mapping)), list(mapping), 1), 1.0)]
    done = StepDone(0, 0, 1.0, "", None, "", "", 32, seconds, 1)
    lines += [encode(replace(done, step=step), 1.0 + step) for step in range(steps)]
    with (folder.path / STREAM).open("ab") as stream:
        stream.write(b"".join(line + b"\n" for line in lines))
    folder.write_state(JobStatus(JobState.RUNNING, virtual_nodes=NODES))


def on(*devices: str) -> list[str]:
    return [devices[node % len(devices)] for node in range(NODES)]


def running(world: World, starts: Starts, **options: object) -> tuple[Manager, str, Clock]:
    clock = Clock()
    manager = world.manager(DEVICES, "las-mixed", clock)
    job_id = manager.submit(job(demand=4, virtual_nodes=NODES, **options))  # type: ignore[arg-type]
    later(manager, clock)
    return manager, job_id, clock


def later(manager: Manager, clock: Clock) -> None:
    """A round and an estimate later."""
    clock.now += 400.0
    manager.tick()


def test_nothing_is_known_of_a_script_that_was_never_seen(world: World, starts: Starts) -> None:
    manager, job_id, _ = running(world, starts)
    model = manager.reconciler.driver.learnt.model(job_id)
    assert model is not None
    assert model.source == "linear"
    assert model.doubtful == {"P100", "K80"}


def test_steps_are_learnt_from_and_the_policy_is_told(
    world: World, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, job_id, clock = running(world, starts)
    told: list[object] = []
    handle = manager.scheduler.handle
    monkeypatch.setattr(manager.scheduler, "handle", lambda event: told.append(event) or handle(event))
    with launched(manager, starts):
        write(manager, job_id, on("P100:0"), 0.8)
        write(manager, job_id, on("K80:0"), 3.2)
        later(manager, clock)
        model = manager.reconciler.driver.learnt.model(job_id)
        assert model is not None
        assert model.source == "its own steps"
        assert model.mean[:2].tolist() == pytest.approx([0.1, 0.4], rel=0.1)
        assert any(isinstance(event, JobChanged) for event in told)
        told.clear()
        later(manager, clock)
        assert not any(isinstance(event, JobChanged) for event in told)  # nothing new


def test_what_a_job_took_is_in_its_record_once_it_has_ended(world: World, starts: Starts) -> None:
    manager, job_id, clock = running(world, starts)
    with launched(manager, starts):
        write(manager, job_id, on("P100:0"), 0.8)
        later(manager, clock)
    manager.fleet.folder(job_id).write_state(JobStatus(JobState.DONE))
    starts.processes[0].end(0)
    later(manager, clock)
    (measured,) = manager.records[job_id].measured_steps
    assert (measured.seconds, measured.devices) == (0.8, 1)
    assert recorded.from_json(recorded.to_json(manager.records[job_id])) == manager.records[job_id]


def test_another_job_of_the_script_begins_with_what_the_last_one_took(world: World, starts: Starts) -> None:
    manager, first, clock = running(world, starts)
    with launched(manager, starts):
        write(manager, first, on("P100:0"), 0.8)
        write(manager, first, on("K80:0"), 3.2)
        later(manager, clock)
    second = manager.submit(job(demand=4, virtual_nodes=NODES))
    model = manager.reconciler.driver.learnt.model(second)
    assert model is not None
    assert model.source == "other jobs of the script"
    assert model.mean[1] / model.mean[0] == pytest.approx(4, rel=0.1)


def profiled(types: Sequence[str]) -> None:
    folder = profiles_of("job.py")
    folder.mkdir(parents=True)
    profiles = {name: Profile(name, (Point(2, TRUE[name] / 2), Point(4, TRUE[name]))) for name in types}
    workload = Workload("job", profiles, Communication(((2, 0.01),)))
    (folder / "all.json").write_text(json.dumps(profile.to_json(workload)))


def test_a_profile_of_the_script_comes_before_what_other_jobs_took(world: World, starts: Starts) -> None:
    profiled(["P100", "K80"])
    manager, job_id, _ = running(world, starts)
    model = manager.reconciler.driver.learnt.model(job_id)
    assert model is not None
    assert model.source == "profile"
    assert model.mean[1] / model.mean[0] == pytest.approx(4)


def test_a_damaged_profile_stops_nothing(world: World, starts: Starts) -> None:
    folder = profiles_of("job.py")
    folder.mkdir(parents=True)
    (folder / "all.json").write_text("{")
    manager, job_id, _ = running(world, starts)
    model = manager.reconciler.driver.learnt.model(job_id)
    assert model is not None
    assert model.source == "linear"


def test_a_job_shows_what_it_took_and_would_take(world: World, starts: Starts) -> None:
    manager, job_id, clock = running(world, starts)
    with launched(manager, starts):
        write(manager, job_id, on("P100:0"), 0.8)
        later(manager, clock)
        speed = ClusterSource(manager).job(job_id)["speed"]
    assert speed["source"] == "its own steps"
    assert speed["unseen"] == ["K80"]
    (measured,) = speed["measured"]
    assert measured["devices"] == {"P100": 1}
    assert measured["waves"] == {"P100": 8}
    assert measured["predicted_step_seconds"] == pytest.approx(0.8, rel=0.05)
    seconds = {tuple(sorted(each["devices"].items())): each["step_seconds"] for each in speed["predicted"]}
    assert seconds.keys() == {
        (("P100", 1),),
        (("P100", 2),),
        (("K80", 1),),
        (("K80", 2),),
        (("K80", 2), ("P100", 2)),
    }
    assert seconds[("P100", 2),] == pytest.approx(0.4, rel=0.15)


def test_a_takeover_knows_what_the_last_manager_knew(world: World, starts: Starts) -> None:
    manager, job_id, clock = running(world, starts)
    with launched(manager, starts):
        write(manager, job_id, on("P100:0"), 0.8)
        later(manager, clock)
        again = world.manager(DEVICES, "las-mixed", clock)
        model = again.reconciler.driver.learnt.model(job_id)
    assert model is not None
    assert model.source == "its own steps"


def test_idle_slow_devices_are_offered_where_they_help_and_given_back_when_somebody_wants_them(
    world: World, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TRUE, "K80", 0.25)
    profiled(["P100", "K80"])
    manager, first, clock = running(world, starts)
    assert sorted(manager.records[first].devices) == ["K80:0", "K80:1", "P100:0", "P100:1"]
    second = manager.submit(job(demand=2, virtual_nodes=NODES))
    later(manager, clock)
    devices = [set(manager.records[each].devices) for each in (first, second)]
    assert devices == [{"P100:0", "P100:1"}, {"K80:0", "K80:1"}]


def test_devices_that_would_only_cost_time_are_left_idle(
    world: World, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TRUE, "K80", 10.0)
    profiled(["P100", "K80"])
    manager, job_id, _ = running(world, starts)
    assert sorted(manager.records[job_id].devices) == ["P100:0", "P100:1"]
