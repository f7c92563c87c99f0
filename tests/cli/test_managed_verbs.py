"""Every verb on every kind of job of a manager's: a clear answer, never a traceback."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.test_jobs import run_verb
from tests.cli.test_run import VF
from tests.manager.managed import SCRIPT, Managed, Service, until
from virtualflow.core.job_state import ENDED

pytestmark = [
    pytest.mark.timeout(400),  # a busy machine decides nothing
]
CHANGES = (["pause"], ["resume"], ["cancel"], ["resize", "1"], ["resize", "auto"], ["priority", "2"])


@dataclass(frozen=True)
class OneOfEach:
    """A manager of two devices, and a job in each state."""

    service: Service
    running: Managed
    done: Managed
    paused: Managed
    queued: Managed

    @property
    def states(self) -> list[tuple[Managed, str]]:
        return [(self.done, "DONE"), (self.running, "RUNNING"), (self.paused, "PAUSED"), (self.queued, "QUEUED")]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneOfEach]:
    folder = tmp_path_factory.mktemp("verbs")
    service = Service(tmp_path_factory.mktemp("cluster"), "--devices", "2")
    service.up()
    done = service.submit(service_script(folder), name="early")
    done.until_over()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("VF_HOME", str(service.home))
        options = ["--name", "first", "--demand", "2", "--min", "2", "--checkpoint-every", "5"]  # nobody runs beside it
        code, text = run_verb("submit", *options, str(endless(folder)), str(folder))
    assert code == 0, text
    running = Managed(service, text.split()[1], folder)
    running.until_on(2)
    paused = service.submit(demand=2, min=2, name="paused")
    paused.ask("pause")
    until(lambda: paused.view()["state"] == "PAUSED")
    yield OneOfEach(service, running, done, paused, service.submit(demand=2, min=2, name="queued"))
    service.close()


@pytest.fixture
def jobs(shared: OneOfEach, monkeypatch: pytest.MonkeyPatch) -> OneOfEach:
    """As the tests before have left them; those that end one of them come last."""
    monkeypatch.setenv("VF_HOME", str(shared.service.home))
    return shared


def output_of(verb: str, job: str, *more: str) -> str:
    """What a verb says, whatever that is."""
    code, text = run_verb(verb, job, *more)
    assert code in (0, 2), text
    assert "Traceback" not in text
    assert (code == 2) == text.startswith("error: "), text
    return text


def test_the_queue_lists_every_job_with_its_state(jobs: OneOfEach) -> None:
    code, table = run_verb("queue")
    assert code == 0
    for job, state in jobs.states:
        assert job.id in table
        assert state in table
    listed = [view["id"] for view in json.loads(run_verb("queue", "--json")[1])]
    assert listed[:4] == [job.id for job, _ in jobs.states]


def test_every_job_is_described_and_its_log_is_shown(jobs: OneOfEach) -> None:
    assert "state" in output_of("describe", jobs.running.id)
    for job, state in jobs.states:
        assert json.loads(output_of("describe", job.id, "--json"))["state"] == state
        assert state in output_of("status", job.id)
        output_of("logs", job.id)


def test_the_devices_are_shown_with_the_job_on_them(jobs: OneOfEach) -> None:
    jobs.running.until_on(2)
    assert run_verb("devices")[1].count(jobs.running.id) == 2


@pytest.mark.parametrize("verb", CHANGES, ids=" ".join)
def test_a_job_that_has_ended_or_is_unknown_can_not_be_changed(jobs: OneOfEach, verb: list[str]) -> None:
    assert output_of(verb[0], jobs.done.id, *verb[1:]) == f"error: job {jobs.done.id} has ended: its state is DONE\n"
    assert re.search("(there is|has) no job 'nobody'", output_of(verb[0], "nobody", *verb[1:]))


def test_to_stop_a_job_that_waits_is_refused_with_the_verb_that_ends_it(jobs: OneOfEach) -> None:
    text = output_of("stop", jobs.queued.id)
    assert text == f"error: job {jobs.queued.id} waits for devices: `vf cancel {jobs.queued.id}` ends it\n"


def test_only_a_paused_job_can_be_resumed(jobs: OneOfEach) -> None:
    assert "is not paused: its state is RUNNING" in output_of("resume", jobs.running.id)
    assert "is not paused: its state is QUEUED" in output_of("resume", jobs.queued.id)


def test_a_waiting_job_can_be_paused_and_resumed(jobs: OneOfEach) -> None:
    for job in (jobs.paused, jobs.queued):
        assert output_of("pause", job.id) == f"job {job.id} is paused; `vf resume {job.id}` continues it\n"
    assert jobs.queued.view()["state"] == "PAUSED"
    assert output_of("resume", jobs.queued.id) == f"job {jobs.queued.id} continues: its state is QUEUED\n"


@pytest.mark.parametrize("name", ["running", "paused", "queued"])
def test_priority_and_size_of_a_job_can_be_changed(jobs: OneOfEach, name: str) -> None:
    jobs.running.until_on(2)  # or one that is to wait finds a device
    job = getattr(jobs, name).id
    assert output_of("priority", job, "2.5") == f"job {job} has priority 2.5\n"
    assert output_of("resize", job, "1") == f"job {job} has at most 1 device from now on\n"
    assert "as many devices as the policy gives it" in output_of("resize", job, "auto")
    assert "a priority is a number above 0" in output_of("priority", job, "0")
    assert "at least one device" in output_of("resize", job, "0")
    assert "a job can have at most 2 devices here, not 9" in output_of("resize", job, "9")


def test_a_job_that_has_not_ended_is_neither_cleaned_nor_stopped_if_it_does_not_run(jobs: OneOfEach) -> None:
    assert "is running" in output_of("clean", jobs.running.id)
    assert "its state is PAUSED" in output_of("clean", jobs.paused.id)
    assert "its state is QUEUED" in output_of("clean", jobs.queued.id)
    assert "not running: its state is PAUSED" in output_of("stop", jobs.paused.id)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["submit", "nowhere.py"], "there is no script nowhere.py"),
        (["submit", "--priority", "-1", str(SCRIPT)], "a priority is a number above 0"),
        (["submit", "--demand", "3", str(SCRIPT)], "the cluster has 2 devices"),
        (["submit", "--name", "../x", str(SCRIPT)], "can't be used"),
        (["submit", "--expect", "soon", str(SCRIPT)], "expected a time such as"),
        (["devices", "--drain", "7"], "there is no device '7'"),
        (["describe", "nobody"], "has no job 'nobody'"),
        (["status", "nobody"], "there is no job 'nobody'"),
    ],
)
def test_what_can_not_be_done_is_refused_with_the_reason(jobs: OneOfEach, words: list[str], reason: str) -> None:
    code, text = run_verb(*words)
    assert (code, text.startswith("error: ")) == (2, True), text
    assert reason in text


def test_a_waiting_job_can_be_cancelled(jobs: OneOfEach) -> None:
    for job in (jobs.queued, jobs.paused):
        assert output_of("cancel", job.id) == f"job {job.id} is cancelled\n"
        assert job.view()["state"] == "CANCELLED"


def test_a_running_job_can_be_stopped(jobs: OneOfEach) -> None:
    assert output_of("stop", jobs.running.id) == f"job {jobs.running.id} has ended\n"
    assert jobs.running.until_over()["state"] == "CANCELLED"


def test_who_waits_for_a_job_that_fails_sees_why(jobs: OneOfEach, tmp_path: Path) -> None:
    for job in (jobs.running, jobs.queued, jobs.paused):  # they have the devices, or are before this one in the queue
        if job.view()["state"] not in ENDED:
            job.ask("cancel")
    script = service_script(tmp_path, "raise ValueError('on purpose')\n")
    with subprocess.Popen([*VF, "submit", "--wait", str(script)], stderr=subprocess.PIPE, text=True) as waiting:
        try:
            text = waiting.communicate(timeout=300)[1]
        except subprocess.TimeoutExpired:
            waiting.kill()
            pytest.fail(f"{jobs.service.client.get('/api/jobs')[-1]}\n{jobs.service.log[-4000:]}")
    assert waiting.returncode == 1
    assert "ValueError: on purpose" in text


def test_the_records_of_a_job_outlive_its_folder(jobs: OneOfEach) -> None:
    assert run_verb("clean", "--older-than", "0", "--yes")[0] == 0
    assert not jobs.service.home.joinpath("jobs", jobs.done.id).exists()
    assert [view["state"] for view in json.loads(run_verb("queue", "--json")[1])].count("DONE") == 1


def endless(folder: Path) -> Path:
    """The job of these tests without an end: however busy the machine is, no test comes too late for it."""
    path = folder / "endless.py"
    path.write_text(
        SCRIPT.read_text().replace("epochs(40)", "epochs(10**6)").replace('wait_while("hold-step")', "time.sleep(0.1)")
    )
    return path


def service_script(folder: Path, text: str = "print('done')\n") -> Path:
    path = folder / "scripts" / "short.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_without_a_manager_the_verbs_say_how_to_get_one() -> None:
    for verb in (["queue"], ["submit", str(SCRIPT)], ["devices"], ["dashboard"], ["pause", "x"], ["cluster", "down"]):
        assert run_verb(*verb) == (2, "error: no manager runs here. `vf cluster up` starts one.\n")
    assert run_verb("describe", "x")[1].endswith("`vf cluster up` starts one. `vf status x` shows a job of `vf run`.\n")
    for wrong, reason in (
        (["--policy", "best"], "there is no policy 'best'"),
        (["--policy", "pollux"], "it changes the batch size of running jobs, and with it what they train. Use wfs"),
        (["--policy", "sia"], "it changes the batch size of running jobs, and with it what they train. Use las-mixed"),
        (["--policy", "antman"], "which a live job has no means for. Use gandiva"),
        (["--backend", "cloud"], "--backend cloud"),
        (["--listen", "here"], "is not an address"),
    ):
        code, text = run_verb("cluster", "up", *wrong)
        assert code == 2
        assert reason in text
