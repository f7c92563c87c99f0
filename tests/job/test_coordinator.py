"""A coordinator whose workers are the other ends of their lines: messages in, messages out, and how the job ends."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Printed
from virtualflow.core.generation import Cause
from virtualflow.core.job_state import JobState
from virtualflow.errors import LaunchError
from virtualflow.job.coordinator import Coordinator
from virtualflow.job.folder import JobFolder, JobSpec
from virtualflow.job.outcome import JobOutcome
from virtualflow.job.output import Logged
from virtualflow.job.post_office import packed
from virtualflow.job.spec import Failure
from virtualflow.job.wire_messages import (
    AllFinished,
    EarlyResult,
    ExchangeWorker,
    FileRead,
    FirstLoopLeft,
    FormedGroup,
    GroupLetters,
    GroupPost,
    GroupPosts,
    HoldsState,
    JoinRefused,
    Leaving,
    ModuleLoaded,
    NewGeneration,
    ReadyToJoin,
    ScriptFinished,
    ToWorker,
    TrainerMade,
    VerdictReached,
    WorkerFailed,
)
from virtualflow.program.manifest import digest_of_file
from virtualflow.testing import FakeBackend, FakeWorker

Plan = Callable[["Job"], Iterator[None]]  # what happens, a yield for each turn of the coordinator
MAX_TURNS = 500


class Job:
    """A job on fake workers."""

    def __init__(self, folder: Path, backend: FakeBackend, *, with_logs: bool = False) -> None:
        script = folder / "script.py"
        script.write_text("")
        self.backend = backend
        self.folder = JobFolder(folder / "job")
        self._spec = JobSpec.of("job", str(script), (), ("0", "1"))
        self.folder.create(self._spec)
        self.printed = Printed()
        self.received: dict[str, list[ToWorker]] = {}
        sink = Logged(self.folder.path / "logs", self.printed) if with_logs else self.printed
        self.coordinator = Coordinator(self._spec, self.folder, backend, sink, self._tick)

    def run(self, plan: Plan) -> JobOutcome:
        self._plan = plan(self)
        self._turns = 0
        return self.coordinator.run()

    def worker(self, device: str) -> FakeWorker:
        return self.backend.workers[device]

    def all_send(self, message: TrainerMade | ScriptFinished | FormedGroup) -> None:
        for device in self.coordinator.roster.generation.devices:
            self.worker(device).send(message)

    def last(self, device: str) -> ToWorker | None:
        return (self.received.get(device) or [None])[-1]

    def generation(self, device: str) -> NewGeneration | None:
        last = self.last(device)
        return last if isinstance(last, NewGeneration) else None

    def _tick(self) -> None:
        self._turns += 1
        assert self._turns < MAX_TURNS, "the plan never came to its end"
        for device, worker in self.backend.workers.items():
            if not worker.is_closed:
                self.received.setdefault(device, []).extend(worker.received())
            if self.last(device) == AllFinished() and not worker.is_closed:
                self.backend.end(worker, 0)
        next(self._plan, None)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with FakeBackend() as backend:
        yield Job(tmp_path, backend)


def finish(job: Job) -> Iterator[None]:
    """Every script comes to its end."""
    job.all_send(TrainerMade((1,) * 4, 10))
    yield
    job.all_send(ScriptFinished())


def test_a_job_is_done_when_every_script_is(job: Job) -> None:
    assert job.run(finish) == JobOutcome(0)
    assert [job.last(device) for device in "01"] == [AllFinished()] * 2
    assert job.folder.read_state().state == JobState.DONE


def test_the_status_shows_who_runs_which_virtual_nodes(job: Job) -> None:
    def plan(job: Job) -> Iterator[None]:
        assert job.coordinator.status().state == JobState.STARTING
        job.all_send(TrainerMade((1,) * 4, 10))
        yield
        status = job.coordinator.status()
        assert status.state == JobState.RUNNING
        assert [(worker.device, worker.virtual_nodes) for worker in status.workers] == [("0", (0, 1)), ("1", (2, 3))]
        yield
        assert job.folder.written_state() == status
        job.all_send(ScriptFinished())

    assert job.run(plan).code == 0


def test_the_others_get_the_generation_without_a_worker_that_was_killed(job: Job) -> None:
    def plan(job: Job) -> Iterator[None]:
        job.all_send(TrainerMade((1,) * 4, 10))
        yield
        job.backend.end(job.worker("0"), -signal.SIGKILL)
        while (new := job.generation("1")) is None:
            yield
        assert (new.generation.cause, new.generation.devices) == (Cause.LOSS, ("1",))
        job.worker("1").send(FormedGroup(new.generation.number))
        job.worker("1").send(ScriptFinished())

    assert job.run(plan) == JobOutcome(0)
    assert job.coordinator.status().failures == 1


def test_a_device_that_a_sentinel_has_caught_leaves_and_gets_no_worker_again(job: Job) -> None:
    def plan(job: Job) -> Iterator[None]:
        job.all_send(TrainerMade((1,) * 4, 10))
        yield
        for _ in range(2):  # each worker says so; it counts once
            job.worker("1").send(VerdictReached(3, "0", drained=True, text="device 0 lied"))
        while (new := job.generation("1")) is None:
            yield
        assert (new.generation.cause, new.generation.devices) == (Cause.LOSS, ("1",))
        job.worker("1").send(FormedGroup(new.generation.number))
        with pytest.raises(LaunchError, match="device 0 computed wrongly"):
            job.coordinator.move(["0", "1"])
        status = job.coordinator.status()
        assert (status.drained, status.corruption) == (("0",), ("step 3: device 0 lied",))
        job.worker("1").send(ScriptFinished())

    assert job.run(plan) == JobOutcome(0)
    said = [text.decode() for (_, stream), text in job.printed.text.items() if stream == "stderr"]
    assert "".join(said).count("step 3: device 0 lied") == 2  # when it was found, and at the end


def test_posts_reach_the_workers_of_the_group_and_of_no_other(job: Job) -> None:
    def plan(job: Job) -> Iterator[None]:
        job.worker("0").send(GroupPost("generation/7", "0/1", b""))
        job.worker("0").send(GroupPost("generation/0", "0/1", b"\xff\x00"))
        job.worker("1").send(GroupPost("generation/0", "1/0", b""))
        job.worker("0").send(GroupLetters("generation/0", "0/0", (b"for 0", b"for 1")))
        while len(job.received.get("1", [])) < 2:
            yield
        yield from finish(job)

    assert job.run(plan).code == 0
    posts = [packed("generation/0", {"0/1": b"\xff\x00", "1/0": b""})]
    assert job.received["1"][:2] == [*posts, packed("generation/0", {"0/0": b"for 1"})]
    assert [message for message in job.received["0"] if isinstance(message, GroupPosts)] == posts


def test_a_joiner_gets_early_results_is_let_in_and_takes_part(job: Job) -> None:
    def plan(job: Job) -> Iterator[None]:
        for device in "01":  # each reports; the first report counts
            job.worker(device).send(EarlyResult(0, "0.5"))
        job.all_send(TrainerMade((1,) * 4, 10))
        yield
        job.coordinator.resize(3)
        yield
        job.worker("2").send(ReadyToJoin())
        while (new := job.generation("2")) is None:
            yield
        assert (new.generation.joining, new.generation.sender) == (("2",), "0")
        job.worker("2").send(HoldsState())
        for device in "012":
            job.worker(device).send(FormedGroup(new.generation.number))
        while not job.coordinator.roster.is_settled:
            yield
        job.all_send(ScriptFinished())

    assert job.run(plan) == JobOutcome(0)
    assert job.received["2"][0] == EarlyResult(0, "0.5")
    assert sum(isinstance(message, EarlyResult) for message in job.received["2"]) == 1


def test_a_joiner_that_refuses_itself_is_not_tried_again(job: Job) -> None:
    def plan(job: Job) -> Iterator[None]:
        job.all_send(TrainerMade((1,) * 4, 10))
        yield
        job.coordinator.resize(3)
        yield
        job.worker("2").send(JoinRefused("config.json changed"))
        job.backend.end(job.worker("2"), 0)
        while not job.coordinator.roster.is_settled:
            yield
        job.all_send(ScriptFinished())

    assert job.run(plan).code == 0
    assert "device 2 can't join: config.json changed" in job.printed.text["0", "stderr"].decode()


def test_a_joiner_whose_script_hangs_is_given_up(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("virtualflow.job.coordinator.JOIN_PATIENCES", 0.0)

    def plan(job: Job) -> Iterator[None]:
        job.all_send(TrainerMade((1,) * 4, 10))
        yield
        job.coordinator.resize(3)
        yield
        while not job.coordinator.roster.is_settled:  # its line is there, and may have heartbeats: that is no progress
            yield
        job.all_send(ScriptFinished())

    assert job.run(plan) == JobOutcome(0)
    assert (
        "device 2 can't join: its script has not come to where the job is" in job.printed.text["0", "stderr"].decode()
    )


def test_an_error_of_one_script_is_the_jobs(job: Job) -> None:
    failure = Failure("1", "ValueError", "Traceback\nValueError: no\n")

    def plan(job: Job) -> Iterator[None]:
        job.worker("0").send(WorkerFailed(Failure("0", "PeerLostError", "gone", consequence=True)))
        job.worker("1").send(WorkerFailed(failure))
        job.backend.end(job.worker("1"), 1)
        yield

    assert job.run(plan) == JobOutcome(1, failure)
    state = job.folder.written_state()
    assert (state.state, state.reason, state.lost) == (JobState.FAILED, "ValueError: no", False)


def test_a_job_whose_workers_are_all_killed_failed_through_no_fault_of_its_script(job: Job) -> None:
    def plan(job: Job) -> Iterator[None]:
        for device in "01":
            job.backend.end(job.worker(device), -signal.SIGKILL)
        yield

    outcome = job.run(plan)
    assert outcome.code == 128 + signal.SIGKILL
    assert outcome.failure is not None
    assert "all workers were lost" in outcome.failure.text
    assert job.folder.written_state().lost


def test_a_stop_that_comes_too_late_leaves_a_job_that_is_done(job: Job) -> None:
    def plan(job: Job) -> Iterator[None]:
        job.all_send(TrainerMade((1,) * 4, 10))
        yield
        job.coordinator.stop(checkpoint=True)
        job.all_send(ScriptFinished())

    assert job.run(plan) == JobOutcome(0)
    assert job.folder.written_state().state == JobState.DONE
    assert not job.coordinator.was_stopped


def test_a_preempted_job_stops_with_all_its_workers(job: Job) -> None:
    def plan(job: Job) -> Iterator[None]:
        job.all_send(TrainerMade((1,) * 4, 10))
        yield
        for device in "01":
            job.worker(device).send(Leaving())
        while (new := job.generation("1")) is None or new.generation.cause != Cause.STOP:
            if new is not None and new.generation.cause == Cause.RESIZE:
                job.worker("1").send(FormedGroup(new.generation.number))
            yield
        for device in "01":
            job.backend.end(job.worker(device), 0)

    assert job.run(plan) == JobOutcome(0)
    assert job.coordinator.was_preempted
    assert job.folder.written_state().state == JobState.CANCELLED


def test_a_worker_that_names_a_file_outside_of_the_job_ends_alone(job: Job) -> None:
    def plan(job: Job) -> Iterator[None]:
        job.all_send(TrainerMade((1,) * 4, 10))
        yield
        job.worker("1").send(ModuleLoaded("../../../outside", "outside", b"x = 1"))
        while (new := job.generation("0")) is None:
            yield
        job.worker("0").send(FormedGroup(new.generation.number))
        job.worker("0").send(ScriptFinished())

    assert job.run(plan) == JobOutcome(0)
    assert job.coordinator.status().failures == 1
    assert not list(job.folder.path.parent.rglob("outside"))


@pytest.mark.parametrize("obstacle", ["closed", "changed file"])
def test_an_exchange_that_is_no_longer_possible_is_given_up_and_the_job_goes_on(job: Job, obstacle: str) -> None:
    config = job.folder.path.parent / "config.json"
    config.write_text("{}")

    def plan(job: Job) -> Iterator[None]:
        job.all_send(TrainerMade((1,) * 4, 10))
        yield
        job.worker("0").send(FileRead(str(config), digest_of_file(str(config)) or ""))
        job.worker("0").send(ExchangeWorker("cpu"))
        while (new := job.generation("0")) is None:
            yield
        assert new.generation.devices == ("0",)  # without its last one, and back
        if obstacle == "closed":
            job.worker("0").send(FirstLoopLeft())
        else:
            config.write_text("other")
        job.worker("0").send(FormedGroup(new.generation.number))
        while "audit: no worker was exchanged" not in job.printed.text["0", "stderr"].decode():
            yield
        job.worker("0").send(ScriptFinished())

    assert job.run(plan) == JobOutcome(0)
