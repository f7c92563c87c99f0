"""What scripts, joiners and helper processes do wrong, and what of it the job must not suffer from."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from tests.conftest import Launcher
from tests.job.driven import TRAIN, Driven, to
from tests.job.test_joiners import assert_same
from virtualflow.backends.local import LocalBackend
from virtualflow.core.roster import Roster
from virtualflow.core.roster_events import LossReported, TimePassed
from virtualflow.job.coordinator import Coordinator
from virtualflow.job.outcome import signal_advice
from virtualflow.job.wire import Wire
from virtualflow.job.wire_messages import TO_WORKER, ScriptFinished

PRINTS = TRAIN + "print(trainer.digest())\n"


def test_a_fork_that_comes_to_the_script_s_end_is_not_the_worker_s_end(backend: LocalBackend, tmp_path: Path) -> None:
    fork = "        if trainer.global_step == 7 and os.fork() == 0:\n            sys.exit(0)\n"
    forks = PRINTS.replace("        pace(trainer)", fork + "        pace(trainer)")
    calm = Driven(backend, tmp_path / "calm", PRINTS).run()
    assert_same(calm, Driven(backend, tmp_path / "forking", forks).run(2))


def test_a_fork_does_not_speak_on_the_line() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire = Wire(ours, TO_WORKER)
        if (child := os.fork()) == 0:
            os._exit(int(wire.send(ScriptFinished())))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGRTMIN + 1])
def test_a_worker_killed_by_any_signal_is_replaced(backend: LocalBackend, tmp_path: Path, number: int) -> None:
    def kill(coordinator: Coordinator) -> None:
        os.kill(coordinator.status().workers[1].pid, number)

    calm = Driven(backend, tmp_path / "calm", PRINTS).run()
    assert_same(calm, Driven(backend, tmp_path / "killed", PRINTS).run(2, [(3, kill)]))
    assert f"killed by {'SIGSEGV' if number == signal.SIGSEGV else f'signal {number}'}" in signal_advice("0", number)


def test_a_joiner_whose_script_fails_ends_alone(backend: LocalBackend, tmp_path: Path) -> None:
    needs = "import os\nif os.path.exists(folder / 'gone'): raise OSError('a disk of its own is missing')\n" + PRINTS

    def grow(coordinator: Coordinator) -> None:
        (tmp_path / "grown" / "gone").touch()
        coordinator.resize(3)

    calm = Driven(backend, tmp_path / "calm", needs).run()
    finished = Driven(backend, tmp_path / "grown", needs).run(2, [(3, grow), (6, lambda c: c.roster.is_settled)])
    assert_same(calm, finished)
    assert "device 2 can't join: Traceback" in finished.err()
    assert "a disk of its own is missing" in finished.err()


def test_a_loss_counts_only_if_a_member_reports_it() -> None:
    roster = Roster(("0", "1"), None, None, replace_lost=True, patience_seconds=1.0)
    roster.handle(LossReported("stranger", 0), 1.0)
    assert roster.handle(TimePassed(), 100.0) == []


STOPS = """
import signal
from virtualflow.core import faults

def stop(point):
    if point == "bucket" and trainer.global_step == 5 and not trainer.is_lead and not (folder / "stopped").exists():
        (folder / "stopped").touch()
        os.kill(os.getpid(), signal.SIGSTOP)
faults.arm(stop)
"""


@pytest.mark.on_cuda_too
def test_a_worker_that_is_stopped_where_others_wait_for_it_is_replaced(
    backend: LocalBackend, cpus: LocalBackend, tmp_path: Path
) -> None:
    calm = Driven(cpus, tmp_path / "calm", PRINTS).run()
    stops = PRINTS.replace("for _ in trainer.epochs", STOPS + "for _ in trainer.epochs")
    finished = Driven(backend, tmp_path / "stopped", stops, patience_seconds=3.0).run(2)
    assert (tmp_path / "stopped" / "stopped").exists()
    assert_same(calm, finished)


def test_a_stopped_fork_server_stops_no_job(tmp_path: Path) -> None:
    with LocalBackend() as own:

        def stop_server(coordinator: Coordinator) -> None:
            os.kill(own.server_pid, signal.SIGSTOP)
            os.kill(coordinator.status().workers[1].pid, signal.SIGKILL)

        calm = Driven(own, tmp_path / "calm", PRINTS).run()
        plan = [(3, stop_server), (6, lambda coordinator: coordinator.roster.is_settled), (8, to(3))]
        finished = Driven(own, tmp_path / "stopped", PRINTS, patience_seconds=3.0).run(2, plan)
    assert_same(calm, finished)


def test_a_fork_server_that_is_killed_while_it_starts_is_replaced(tmp_path: Path, run_job: Launcher) -> None:
    (tmp_path / "sitecustomize.py").write_text(KILLED_TWICE)
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    with LocalBackend(environment={"PYTHONPATH": path}) as own:
        assert Driven(own, tmp_path / "job", PRINTS).run().outcome.code == 0
    assert (tmp_path / "started").read_text() == "xxx"


# Python runs this before anything else. Workers are forked, so that only servers come here.
KILLED_TWICE = """
import os, signal
from pathlib import Path

started = Path(__file__).with_name("started")
with started.open("a") as file:
    file.write("x")
if len(started.read_text()) < 3:
    os.kill(os.getpid(), signal.SIGKILL)
"""
