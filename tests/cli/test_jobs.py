"""The life of a job as a user meets it: real commands, real processes, real signals."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cli.test_run import VF, alive, descendants, vf
from tests.ending import end_job
from virtualflow.cli.main import main
from virtualflow.core.wording import counted
from virtualflow.errors import LaunchError
from virtualflow.events import STREAM, Loaded, Regrouped, StepDone, read_events
from virtualflow.job import control
from virtualflow.job.folder import JobFolder
from virtualflow.job.status import JobStatus
from virtualflow.job.wire_messages import GetStatus, ResizeJob

pytestmark = [
    pytest.mark.timeout(400),  # a busy machine decides nothing
]
SCRIPT = Path(__file__).with_name("job.py")
STEPS = 200


class Job:
    """A job in the background, held back until it is let go."""

    def __init__(self, folder: Path, *options: str, hold: str = "slow") -> None:
        self.folder = folder
        folder.mkdir()
        self.hold(hold)
        started = vf("run", "--detach", *options, str(SCRIPT), str(folder))
        assert started.returncode == 0, started.stderr
        self.id = started.stdout.split()[1]
        assert started.stdout == f"job {self.id}\n"
        self.home = JobFolder.of(self.id)  # to be found from another $VF_HOME, too
        self.coordinator = coordinator_of(self.id)

    def hold(self, name: str) -> None:
        (self.folder / name).touch()

    def let_go(self, name: str = "slow") -> None:
        (self.folder / name).unlink()

    @property
    def path(self) -> Path:
        return JobFolder.of(self.id).path

    def status(self) -> dict[str, Any]:
        code, text = run_verb("status", self.id, "--json")
        assert code == 0, text
        described: dict[str, Any] = json.loads(text)
        return described

    def until(self, condition: Callable[[JobStatus], bool], seconds: float = 120) -> JobStatus:
        """The first status that fulfils *condition*, read where ``vf status`` reads it."""
        deadline = time.monotonic() + seconds
        while not condition(state := JobFolder.of(self.id).read_state()):
            assert time.monotonic() < deadline, state
            time.sleep(0.02)
        return state

    def until_step(self, step: int) -> None:
        deadline = time.monotonic() + 120
        while not any(done.step >= step for done in self.steps):
            assert time.monotonic() < deadline
            time.sleep(0.02)

    @property
    def events(self) -> list[Any]:
        stream = self.path / STREAM
        return list(read_events(stream)) if stream.exists() else []

    @property
    def steps(self) -> list[StepDone]:
        return [event for event in self.events if isinstance(event, StepDone)]

    def finish(self, *options: str) -> str:
        """Let the job run to its end, from a checkpoint; return the last line it prints."""
        self.let_go()
        resumed = vf("run", "--resume", self.id, *options)
        assert resumed.returncode == 0, resumed.stderr
        assert resumed.stdout.startswith(f"job {self.id}\n")
        return resumed.stdout.splitlines()[-1]

    def assert_no_step_was_lost_or_done_twice(self) -> None:
        """Over everything that the job's runs have told, and each run began where the last one ended."""
        assert [done.step for done in self.steps] == list(range(STEPS))
        assert [event.step for event in self.events if isinstance(event, Loaded)] != []


def coordinator_of(job_id: str) -> int:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"virtualflow.job.serve" in words and job_id.encode() in words:
            return int(folder.name)
    raise AssertionError(f"nobody runs job {job_id}")


def wait_for_end(pids: list[int]) -> None:
    deadline = time.monotonic() + 120
    while left := [pid for pid in pids if alive(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


@contextlib.contextmanager
def starting(folder: Path) -> Iterator[Callable[..., Job]]:
    """Starts jobs below *folder*; none of them is left afterwards."""
    jobs: list[Job] = []

    def one(*options: str, **gates: str) -> Job:
        jobs.append(Job(folder / f"folder-{len(jobs)}", *options, **gates))
        return jobs[-1]

    try:
        yield one
    finally:
        for job in jobs:
            end_job(job.home)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    with starting(tmp_path) as one:
        yield one


@contextlib.contextmanager
def at_home(home: Path) -> Iterator[None]:
    """Fixtures that several tests share have a home of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VF_HOME", str(home))
        yield


class Seen(NamedTuple):
    """What was to be seen of a job at some point of its life."""

    job: Job
    status: dict[str, Any]
    outputs: dict[str, tuple[int, str]]  # by verb: its exit code and its words

    @property
    def nodes(self) -> list[int]:
        """The virtual nodes that its workers run."""
        return sorted(node for worker in self.status["workers"] for node in worker["virtual_nodes"])

    @property
    def processes(self) -> dict[str, int]:
        return {worker["device"]: worker["pid"] for worker in self.status["workers"]}


def seen(job: Job, **verbs: tuple[int, str]) -> Seen:
    return Seen(job, job.status(), verbs)


# One job for the claims below: each fixture does something to it, and keeps what was to be seen then.


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("life") / "vf-home"


@pytest.fixture(scope="module")
def running(shared_home: Path) -> Iterator[Seen]:
    with starting(shared_home.parent) as one:
        with at_home(shared_home):
            job = one("--devices", "2")
            job.until(lambda state: state.state == "RUNNING")
            job.until_step(1)
            verbs = {
                "all": run_verb("status", "--json"),
                "logs": run_verb("logs", job.id),
                "narrow": narrow_status(job.id),
            }
            result = seen(job, **verbs)
            assert all(map(alive, result.processes.values()))
        yield result


@pytest.fixture(scope="module")
def resized(shared_home: Path, running: Seen) -> dict[int, Seen]:
    """By the number of devices, in the order in which it had them."""
    job = running.job
    with at_home(shared_home):
        return {
            devices: seen(job, resize=run_verb("resize", job.id, str(devices), "--wait")) for devices in (4, 3, 1, 2)
        }


@pytest.fixture(scope="module")
def stopped(shared_home: Path, resized: dict[int, Seen]) -> Seen:
    job = resized[2].job
    with at_home(shared_home):
        refused = {str(odd): refusal(job.id, odd) for odd in (-4092, 0, 5)}
        stop = run_verb("stop", job.id, "--checkpoint")
        return seen(job, stop=stop, **refused)


@pytest.fixture(scope="module")
def resumed(shared_home: Path, stopped: Seen) -> Seen:
    """It has gone on to its end on three devices, after some ways to go on that are refused."""
    job = stopped.job
    with at_home(shared_home):
        refused = {words: run_verb("run", "--resume", job.id, *words.split()) for words in OTHER_JOBS}
        last_line = job.finish("--devices", "3")
        again = run_verb("run", "--resume", job.id)
        return seen(job, finish=(0, last_line), again=again, logs=run_verb("logs", job.id), **refused)


OTHER_JOBS = {"train.py": "the script", "--audit": "--audit", "--threads-per-device 2": "--th"}


def narrow_status(job_id: str) -> tuple[int, str]:
    shown = vf("status", job_id)
    return shown.returncode, shown.stdout


def refusal(job_id: str, devices: int) -> tuple[int, str]:
    """What the coordinator says, without the command's own look at the number."""
    with pytest.raises(LaunchError) as error:
        control.ask(JobFolder.of(job_id), ResizeJob(devices))
    return 2, str(error.value)


def test_the_status_of_a_job_has_its_progress_and_who_runs_which_virtual_nodes(running: Seen) -> None:
    status = running.status
    facts = (status["id"], status["state"], status["generation"], status["virtual_nodes"])
    assert facts == (running.job.id, "RUNNING", 0, 4)
    assert status["step"] >= 1
    assert running.nodes == [0, 1, 2, 3]


def test_a_running_job_is_listed_and_shown(running: Seen) -> None:
    assert [each["id"] for each in json.loads(running.outputs["all"][1])] == [running.job.id]
    assert running.job.id in running.outputs["narrow"][1]
    assert "RUNNING" in running.outputs["narrow"][1]


def test_the_log_of_a_running_job_has_what_it_has_printed(running: Seen) -> None:
    assert "step 1 " in running.outputs["logs"][1]


def test_a_resize_that_waits_returns_when_the_job_runs_on_so_many_devices(resized: dict[int, Seen]) -> None:
    for devices, after in resized.items():
        assert after.outputs["resize"] == (0, f"job {after.job.id} runs on {counted(devices, 'device')}\n")
        assert (after.status["state"], len(after.processes)) == ("RUNNING", devices)
    assert (after.status["resizes"], after.status["failures"]) == (4, 0)


def test_after_a_resize_all_virtual_nodes_run_and_who_stays_is_not_restarted(
    running: Seen, resized: dict[int, Seen]
) -> None:
    assert [after.nodes for after in resized.values()] == [[0, 1, 2, 3]] * 4
    assert {after.processes["0"] for after in resized.values()} == {running.processes["0"]}


@pytest.mark.parametrize(
    ("devices", "reason"),
    [("-4092", "a job needs at least one device"), ("0", "a job needs at least one device"), ("5", "4 virtual nodes")],
)
def test_a_size_that_can_not_be_is_refused(stopped: Seen, devices: str, reason: str) -> None:
    assert reason in stopped.outputs[devices][1]


def test_a_job_that_is_stopped_has_not_come_to_its_end(stopped: Seen) -> None:
    assert stopped.outputs["stop"][0] == 0
    assert stopped.status["state"] == "CANCELLED"
    assert stopped.status["step"] < STEPS


@pytest.mark.parametrize("options", OTHER_JOBS)
def test_a_job_is_not_resumed_as_another_one(resumed: Seen, options: str) -> None:
    code, words = resumed.outputs[options]
    assert (code, OTHER_JOBS[options] in words) == (2, True), words


def test_a_job_that_was_resized_stopped_and_resumed_ends_as_if_nothing_had_happened(
    shared_home: Path, resumed: Seen, calm: str
) -> None:
    assert resumed.outputs["finish"][1] == calm
    with at_home(shared_home):
        resumed.job.assert_no_step_was_lost_or_done_twice()


def test_what_was_counted_before_a_stop_counts_after_it_and_the_new_devices_are_kept(
    shared_home: Path, resumed: Seen
) -> None:
    assert (resumed.status["state"], resumed.status["resizes"]) == ("DONE", 4)
    with at_home(shared_home):
        assert len(JobFolder.of(resumed.job.id).spec().devices) == 3


def test_the_log_of_a_job_that_has_ended_ends_with_its_last_line(resumed: Seen, calm: str) -> None:
    assert resumed.outputs["logs"][1].splitlines()[-1] == calm


def test_a_job_that_has_ended_can_not_be_resumed(resumed: Seen) -> None:
    assert "so it can't be resumed" in resumed.outputs["again"][1]


def test_a_job_that_has_just_ended_is_cleaned_only_if_that_is_said(shared_home: Path, resumed: Seen) -> None:
    with at_home(shared_home):
        assert run_verb("clean")[1].startswith("nothing to remove")
        assert run_verb("clean", "--older-than", "0", "--yes")[1].endswith(f"removed job {resumed.job.id}\n")
        assert run_verb("status", "--json") == (0, "[]\n")


def test_a_job_goes_on_under_another_coordinator_which_answers_verbs_and_sees_it_to_its_end(
    start: Callable[..., Job], calm: str
) -> None:
    job = start("--devices", "2")
    job.until_step(3)
    family = descendants(job.coordinator)
    assert len(family) >= 1 + 2  # fork server, workers
    os.kill(job.coordinator, signal.SIGKILL)
    until_taken_over(job)
    assert not [event for event in job.events if isinstance(event, Regrouped)]  # nothing was under way
    assert run_verb("resize", "--wait", job.id, "3")[0] == 0
    os.kill(job.coordinator, signal.SIGKILL)
    os.kill(family[0], signal.SIGKILL)  # with the fork server
    until_taken_over(job)
    assert run_verb("resize", "--wait", job.id, "4")[0] == 0  # from another one
    family += descendants(job.coordinator)
    job.let_go()
    job.until(lambda state: state.state == "DONE")
    assert run_verb("logs", job.id)[1].splitlines()[-1] == calm
    wait_for_end([*family, job.coordinator])
    assert not list(job.path.glob("checkpoints/*"))
    assert not list(job.path.glob("*.sock"))
    assert [done.step for done in job.steps] == list(range(STEPS))


def until_taken_over(job: Job) -> None:
    """Until another coordinator answers."""
    dead, deadline = job.coordinator, time.monotonic() + 120
    while True:
        assert time.monotonic() < deadline, (job.path / "coordinator.log").read_text()
        with contextlib.suppress(AssertionError, LaunchError):
            if (coordinator := coordinator_of(job.id)) != dead and control.ask(JobFolder(job.path), GetStatus()):
                job.coordinator = coordinator
                return
        time.sleep(0.05)


def test_a_coordinator_that_is_told_to_go_leaves_a_checkpoint(start: Callable[..., Job], calm: str) -> None:
    job = start("--devices", "2")
    job.until_step(3)
    family = descendants(job.coordinator)
    os.kill(job.coordinator, signal.SIGTERM)
    wait_for_end([job.coordinator, *family])
    assert job.status()["state"] == "CANCELLED"
    assert (job.path / "checkpoints" / f"step-{len(job.steps):09d}.pt").exists()
    # In the background again: at once, it is known to be starting.
    resumed = vf("run", "--resume", job.id, "--detach")
    assert resumed.returncode == 0, resumed.stderr
    assert job.status()["state"] in ("STARTING", "RUNNING")
    worker = job.until(lambda state: state.state == "RUNNING").workers[1].pid
    # A worker that is told to go leaves, and the job goes on without it.
    os.kill(worker, signal.SIGTERM)
    state = job.until(lambda state: state.state == "RUNNING" and len(state.workers) == 1)
    wait_for_end([worker])
    assert (state.workers[0].virtual_nodes, state.failures) == ((0, 1, 2, 3), 0)
    job.let_go()
    job.until(lambda state: state.state == "DONE")
    assert run_verb("logs", job.id)[1].splitlines()[-1] == calm
    assert [event.cause for event in job.events if isinstance(event, Regrouped)] == ["resize"]
    job.assert_no_step_was_lost_or_done_twice()


def run_verb(*arguments: str) -> tuple[int, str]:
    """The exit code and the words of a verb, called in this process because there are so many of them."""
    words = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(words), redirect_stderr(words):
        patch.setattr("sys.argv", ["vf", *arguments])
        patch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as end:  # anything else would have been a traceback
            main()
    assert end.value.code in (0, 1, 2, None)
    return int(end.value.code or 0), words.getvalue()


def run_all_verbs(job: str) -> dict[str, tuple[int, str]]:
    """What every verb says about a job."""
    return {
        "status": run_verb("status", job),
        "status --json": run_verb("status", job, "--json"),
        "logs": run_verb("logs", job),
        "clean": run_verb("clean", job),
        "resize 9": run_verb("resize", job, "9"),
        "resize 0": run_verb("resize", job, "0"),
        "resume": run_verb("run", "--resume", job),
        "timeline": run_verb("timeline", job, "-o", "timeline.png"),
        "verify": run_verb("verify", job, job),
    }


@dataclass(frozen=True)
class Answers:
    """What every verb has said of one job, state after state."""

    starting: dict[str, tuple[int, str]]
    resizing: dict[str, tuple[int, str]]
    running: dict[str, tuple[int, str]]
    stopping: dict[str, tuple[int, str]]
    resized_early: tuple[str, ...]  # to what the resize led that was asked for before there was a Trainer
    overtaken: tuple[str, str]  # what the waiting one of two resizes says, and the later one
    stop: str
    ended: dict[str, tuple[int, str]]
    job_id: str


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    folder = tmp_path_factory.mktemp("answers")
    with starting(folder) as one, at_home(folder / "vf-home"), contextlib.chdir(folder):
        job = one("--devices", "2", hold="hold-starting")
        while_starting = run_all_verbs(job.id)

        job.hold("hold-joining")
        job.hold("slow")
        job.let_go("hold-starting")
        early = job.until(lambda state: state.state == "RESIZING").wanted
        job.until_step(1)
        while_resizing = run_all_verbs(job.id)
        waiting = subprocess.Popen([*VF, "resize", job.id, "3", "--wait"], stderr=subprocess.PIPE, text=True)
        job.until(lambda state: len(state.wanted) == 3)
        later = run_verb("resize", job.id, "2")[1]
        job.until(lambda state: state.state == "RUNNING")
        overtaken = waiting.communicate(timeout=120)[1], later
        while_running = run_all_verbs(job.id)

        job.hold("hold-step")
        stopping = subprocess.Popen([*VF, "stop", job.id, "--checkpoint"], stdout=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 120
        while "is being stopped" not in run_verb("resize", job.id, "2")[1]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        while_stopping = run_all_verbs(job.id)
        job.let_go("hold-step")
        stop = stopping.communicate(timeout=120)[0]
        ended = {"resize": run_verb("resize", job.id, "2"), "stop": run_verb("stop", job.id)}
        states = while_starting, while_resizing, while_running, while_stopping
        return Answers(*states, early, overtaken, stop, ended, job.id)


@pytest.mark.parametrize(
    ("when", "state"),
    [("starting", "STARTING"), ("resizing", "RESIZING"), ("running", "RUNNING"), ("stopping", "RUNNING")],
)
def test_every_verb_has_a_clear_answer_whatever_the_job_is_doing(answers: Answers, when: str, state: str) -> None:
    outputs = getattr(answers, when)
    assert outputs["status"][0] == 0
    assert state in outputs["status"][1]
    assert json.loads(outputs["status --json"][1])["state"] == state
    assert outputs["logs"][0] == 0
    for verb, message in (("clean", "is running"), ("resume", "is running"), ("resize 0", "at least one device")):
        assert outputs[verb][0] == 2
        assert message in outputs[verb][1]


def test_a_resize_that_comes_before_the_trainer_becomes_one_to_as_many_devices_as_there_is_work_for(
    answers: Answers,
) -> None:
    assert answers.starting["resize 9"][0] == 0  # nobody knows yet how many virtual nodes there are
    assert answers.resized_early == ("0", "1", "2", "3")
    assert "at most that many devices, not 9" in answers.resizing["resize 9"][1]


def test_a_job_can_be_drawn_and_verified_once_it_has_made_its_trainer(answers: Answers) -> None:
    assert [answers.starting[verb][0] for verb in ("timeline", "verify")] == [2, 2]
    assert [answers.running[verb][0] for verb in ("timeline", "verify")] == [0, 0]


def test_who_waits_for_a_resize_learns_that_a_later_one_has_taken_its_place(answers: Answers) -> None:
    waiting, later = answers.overtaken
    assert "to 2 devices meanwhile, not 3" in waiting
    assert later.startswith(f"job {answers.job_id} goes from "), later


def test_a_stop_says_how_the_job_goes_on(answers: Answers) -> None:
    assert answers.stop.startswith(f"job {answers.job_id} has ended\n`vf run --resume {answers.job_id}` continues")


def test_a_job_that_has_ended_can_be_neither_resized_nor_stopped(answers: Answers) -> None:
    refused = (2, f"error: job {answers.job_id} is not running: its state is CANCELLED\n")
    assert answers.ended == {"resize": refused, "stop": refused}


def test_every_verb_says_that_there_is_no_such_job() -> None:
    for name, (code, text) in run_all_verbs("no-such-job").items():
        assert code == 2, name
        assert "there is no job 'no-such-job'" in text or "no run 'no-such-job'" in text or name == "resize 0"
