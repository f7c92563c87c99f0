"""What owners ask for besides devices: to follow other jobs, to be done by a time, to be told of the end."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.manager.managed import until
from tests.manager.worlds import Starts, World, answering, job, launched, starts, vf, world
from virtualflow.cli.options import moment_of
from virtualflow.core.job_state import JobState
from virtualflow.errors import ConfigError, ManagerError, UnknownJobError
from virtualflow.job.status import JobStatus
from virtualflow.manager.api.views import ClusterSource
from virtualflow.manager.manager import Manager
from virtualflow.manager.notices import MAX_TRIES
from virtualflow.testing import FakeClock

__all__ = ["starts", "world"]
NOW = 1_700_000_000.0


def end(manager: Manager, starts: Starts, job_id: str, state: JobState = JobState.DONE) -> None:
    """A job that was started comes to its end."""
    manager.tick()
    folder = manager.fleet.folder(job_id)
    with launched(manager, starts):
        manager.tick()
    folder.write_state(JobStatus(state))
    (folder.path / "failure.txt").write_text("ValueError: on purpose\n")
    starts.processes[[made for made, _ in starts.made].index(job_id)].end(int(state != JobState.DONE))
    manager.tick()
    starts.made.clear()
    starts.processes.clear()


def view(manager: Manager, job_id: str) -> dict[str, Any]:
    return ClusterSource(manager).job(job_id)


def test_a_job_starts_when_those_that_it_follows_are_done(world: World, starts: Starts) -> None:
    manager = world.manager("4")
    first = manager.submit(job(name="first"))
    second = manager.submit(job(name="second", after=(first,)))
    assert view(manager, second)["reason"] == f"it starts after {first} (first, QUEUED)"
    manager = world.manager("4")  # another manager lets it wait, too
    manager.tick()
    assert not manager.records[second].devices
    end(manager, starts, first)
    manager.tick()
    assert manager.records[second].devices


def test_a_job_is_cancelled_if_one_that_it_follows_fails(world: World, starts: Starts) -> None:
    manager = world.manager("4")
    first = manager.submit(job(name="first"))
    second = manager.submit(job(name="second", after=(first,)))
    third = manager.submit(job(name="third", after=(second,)))
    end(manager, starts, first, JobState.FAILED)
    manager.tick()
    manager.tick()
    assert [manager.records[each].state for each in (first, second, third)] == ["FAILED", "CANCELLED", "CANCELLED"]
    assert view(manager, second)["reason"] == f"job {first} (first) has failed, and this one was to start after it"
    assert "has been cancelled" in view(manager, third)["reason"]
    with pytest.raises(ManagerError, match="no job can follow"):
        manager.submit(job(after=(first,)))
    with pytest.raises(UnknownJobError):
        manager.submit(job(after=("nobody",)))


def test_a_deadline_says_early_whether_it_will_be_met(world: World, starts: Starts) -> None:
    clock = FakeClock(NOW)
    manager = world.manager("4", clock=clock)
    ids = [manager.submit(job(by=NOW + 3600.0, expect_seconds=length)) for length in (600.0, 7200.0, None)]
    texts = [view(manager, job_id) for job_id in ids]
    assert [each["late"] for each in texts] == [None, True, None]
    assert texts[0]["deadline"] == "will be met if it has all its devices within 49 min"
    assert texts[1]["deadline"] == "will be missed by 1 h 0 min, or more if it does not start now"
    assert "give --expect" in texts[2]["deadline"]
    clock.now += 600.0
    end(manager, starts, ids[0])
    assert (view(manager, ids[0])["deadline"], view(manager, ids[0])["late"]) == ("met by 50 min", False)
    clock.now += 3600.0
    assert view(manager, ids[2])["deadline"] == "already missed"
    with pytest.raises(ManagerError, match="the deadline is in the past already"):
        manager.submit(job(by=NOW))


def test_times_are_read_as_people_write_them() -> None:
    noon = datetime(2026, 5, 1, 12, 0).timestamp()
    assert moment_of("18:00", "--by", noon) == noon + 6 * 3600
    assert moment_of("9:30", "--by", noon) == datetime(2026, 5, 2, 9, 30).timestamp()
    assert moment_of("2026-12-31 18:00", "--by", noon) == datetime(2026, 12, 31, 18, 0).timestamp()
    assert moment_of("90m", "--by", noon) == noon + 5400
    for wrong in ("soon", "25:00", "18:75", "12"):
        with pytest.raises(ConfigError, match="expected a time such as 18:00"):
            moment_of(wrong, "--by", noon)


@contextmanager
def listening(*answers: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A web server that answers with these codes, and then 200; with what it was sent."""
    received: list[dict[str, Any]] = []
    codes = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(codes.pop(0) if codes else 200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/hook?x=1", received
        server.shutdown()
        thread.join()


def noticed(manager: Manager, job_id: str, clock: FakeClock) -> str:
    def look() -> str:
        clock.now += 100.0
        manager.tick()
        return manager.records[job_id].notice

    return str(until(look))


def test_an_end_is_posted_once_and_again_until_it_arrives(world: World, starts: Starts) -> None:
    clock = FakeClock(NOW)
    manager = world.manager("4", clock=clock)
    with listening(500) as (address, received):
        job_id = manager.submit(job(name="train", notify=address, owner="ann"))
        end(manager, starts, job_id, JobState.FAILED)
        assert noticed(manager, job_id, clock) == "sent"
        again = world.manager("4", clock=clock)
        again.tick()
        assert view(again, job_id)["notice"] == "sent"
    assert len(received) == 2
    assert received[0] == received[1]
    assert received[0]["text"] == f"train ({job_id}) is FAILED: ValueError: on purpose"
    assert (received[0]["state"], received[0]["owner"]) == ("FAILED", "ann")


def test_a_notice_that_never_arrives_is_given_up_with_the_reason(world: World, starts: Starts) -> None:
    clock = FakeClock(NOW)
    manager = world.manager("4", clock=clock)
    with listening(*[404] * 9) as (address, received):
        job_id = manager.submit(job(notify=address))
        end(manager, starts, job_id)
        assert noticed(manager, job_id, clock) == "could not be delivered: 127.0.0.1 answered 404 Not Found"
    assert len(received) == MAX_TRIES


def test_a_command_is_told_of_a_cancelled_job(world: World, starts: Starts, tmp_path: Path) -> None:
    clock = FakeClock(NOW)
    manager = world.manager("4", clock=clock)
    job_id = manager.submit(job(notify=f'cat > {tmp_path}/notice && echo "$VF_JOB_STATE" > {tmp_path}/state'))
    manager.cancel(job_id)
    assert noticed(manager, job_id, clock) == "sent"
    assert (tmp_path / "state").read_text() == "CANCELLED\n"
    assert json.loads((tmp_path / "notice").read_text())["id"] == job_id


def test_no_address_is_refused_at_once(world: World) -> None:
    with pytest.raises(ManagerError, match="is not a web address"):
        world.manager().submit(job(notify="http://"))


def test_one_command_line_asks_for_all_of_it(world: World, starts: Starts, tmp_path: Path) -> None:
    manager = world.manager("4")
    script = tmp_path / "train.py"
    script.write_text("print('hello')\n")

    with answering(manager):
        swept = json.loads(vf("submit", "--json", "--sweep", "lr=1,2", str(script)))
        words = ("--after", swept["sweep"], "--by", "2h", "--expect", "3h", "--notify", "true", "--name", "last")
        last = json.loads(vf("submit", "--json", *words, str(script)))["id"]
        assert manager.records[last].terms.after == tuple(swept["ids"])
        assert manager.records[last].terms.notify == "true"
        assert "will be missed by 1 h 0 min" in vf("queue")
        assert "it starts after" in vf("queue")
        assert "will be missed" in vf("describe", last)
