"""Every verb on every kind of job of a manager's: a clear answer, never a traceback."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_jobs import said
from tests.manager.managed import SCRIPT, Managed, Service, until

pytestmark = pytest.mark.timeout(400)  # a busy machine decides nothing


@pytest.fixture
def service(tmp_path: Path, vf_home: Path) -> Iterator[Service]:
    service = Service(vf_home, "--devices", "2")
    service.up()
    yield service
    service.close()


def told(verb: str, job: str, *more: str) -> str:
    """What a verb says, whatever that is."""
    code, text = said(verb, job, *more)
    assert code in (0, 2), text
    assert "Traceback" not in text
    assert (code == 2) == text.startswith("error: "), text
    return text


def test_every_verb_has_a_clear_answer(service: Service, tmp_path: Path) -> None:
    code, text = said(
        "submit", "--name", "first", "--demand", "2", "--checkpoint-every", "5", str(SCRIPT), str(tmp_path)
    )
    assert code == 0, text
    (tmp_path / "slow").touch()
    running = Managed(service, text.split()[1], tmp_path)
    running.until_on(2)
    done = service.submit(service_script(tmp_path), name="early")
    done.until_over()
    running.until_on(2)
    paused = service.submit(demand=2, min=2, name="paused")
    paused.ask("pause")
    until(lambda: paused.view()["state"] == "PAUSED")
    queued = service.submit(demand=2, min=2, name="queued")

    assert "state" in told("describe", running.id)
    code, table = said("queue")
    assert code == 0
    for job, state in ((running, "RUNNING"), (done, "DONE"), (paused, "PAUSED"), (queued, "QUEUED")):
        assert job.id in table
        assert state in table
        assert json.loads(told("describe", job.id, "--json"))["state"] == state
        assert state in told("status", job.id)
        told("logs", job.id)
    assert [each["id"] for each in json.loads(said("queue", "--json")[1])] == [
        running.id, done.id, paused.id, queued.id
    ]  # fmt: skip
    assert said("devices")[1].count(running.id) == 2

    ended = f"error: job {done.id} has ended: its state is DONE\n"
    for verb in (["pause"], ["resume"], ["cancel"], ["resize", "1"], ["resize", "auto"], ["priority", "2"]):
        assert told(verb[0], done.id, *verb[1:]) == ended
        assert re.search("(there is|has) no job 'nobody'", told(verb[0], "nobody", *verb[1:]))
    assert "is not paused: its state is RUNNING" in told("resume", running.id)
    assert "is not paused: its state is QUEUED" in told("resume", queued.id)
    for job in (paused, queued):
        assert told("pause", job.id) == f"job {job.id} is paused; `vf resume {job.id}` lets it go on\n"
    assert queued.view()["state"] == "PAUSED"
    for job in (running, paused, queued):
        assert told("priority", job.id, "2.5") == f"job {job.id} has priority 2.5\n"
        assert told("resize", job.id, "1") == f"job {job.id} has at most 1 device(s) from now on\n"
        assert "as many devices as the policy gives it" in told("resize", job.id, "auto")
        assert "a priority is a number above 0" in told("priority", job.id, "0")
        assert "at least one device" in told("resize", job.id, "0")
        assert "a job can have 1 to 2 device(s) here, not 9" in told("resize", job.id, "9")
        assert ("is running" if job is running else "its state is PAUSED") in told("clean", job.id)
    assert "not running: its state is PAUSED" in told("stop", paused.id)
    assert told("resume", queued.id) == f"job {queued.id} goes on: its state is QUEUED\n"
    for job in (queued, paused):
        assert told("cancel", job.id) == f"job {job.id} is cancelled\n"
    assert queued.view()["state"] == paused.view()["state"] == "CANCELLED"
    assert told("stop", running.id) == f"job {running.id} has ended\n"
    assert running.until_over()["state"] == "CANCELLED"

    for wrong, reason in (
        (["submit", "nowhere.py"], "there is no script nowhere.py"),
        (["submit", "--priority", "-1", str(SCRIPT)], "a priority is a number above 0"),
        (["submit", "--demand", "3", str(SCRIPT)], "the cluster has 2 device(s)"),
        (["submit", "--name", "../x", str(SCRIPT)], "can't be used"),
        (["submit", "--expect", "soon", str(SCRIPT)], "expected a time such as"),
        (["devices", "--drain", "7"], "there is no device '7'"),
        (["describe", "nobody"], "has no job 'nobody'"),
        (["status", "nobody"], "there is no job 'nobody'"),
    ):
        code, text = said(*wrong)
        assert (code, text.startswith("error: ")) == (2, True), text
        assert reason in text
    code, text = said("submit", "--wait", str(service_script(tmp_path, "raise ValueError('on purpose')\n")))
    assert code == 1
    assert "ValueError: on purpose" in text
    assert said("clean", "--older-than", "0", "--yes")[0] == 0
    assert [each["state"] for each in json.loads(said("queue", "--json")[1])].count("DONE") == 1  # its records stay


def service_script(folder: Path, text: str = "print('done')\n") -> Path:
    path = folder / "scripts" / "short.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_without_a_manager_the_verbs_say_how_to_get_one() -> None:
    for verb in (["queue"], ["submit", str(SCRIPT)], ["devices"], ["dashboard"], ["pause", "x"], ["cluster", "down"]):
        assert said(*verb) == (2, "error: no manager runs here. `vf cluster up` starts one.\n")
    for wrong, reason in (
        (["--policy", "best"], "there is no policy 'best'"),
        (["--backend", "cloud"], "--backend cloud"),
        (["--listen", "here"], "is not an address"),
    ):
        code, text = said("cluster", "up", *wrong)
        assert code == 2
        assert reason in text
