"""Processes around a job that die, or that a script leaves behind: the job goes on, and nothing is left."""

from __future__ import annotations

import os
import signal
import textwrap
from pathlib import Path

import pytest
import torch

from tests.conftest import Launcher
from tests.job.driven import TRAIN, Deed, Driven, to
from tests.job.test_joiners import assert_same
from virtualflow.backends.local import LocalBackend
from virtualflow.job.backend import Exit, Place
from virtualflow.job.coordinator import Coordinator
from virtualflow.job.crew import Crew, Worker
from virtualflow.job.folder import JobFolder
from virtualflow.job.spec import WorkerSpec

DAEMON = """
import os, subprocess, sys, time
from pathlib import Path

import pytest
import torch

def daemonise(folder):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        Path(folder, "daemon").write_text(str(os.getpid()))
        time.sleep(600)  # it holds the worker's streams, and its line to the coordinator
        os._exit(0)
    os.wait()
    while not Path(folder, "daemon").exists():
        time.sleep(0.01)
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path(folder, "session").write_text(str(child.pid))
"""


def is_alive(pid_file: Path) -> bool:
    try:
        os.kill(int(pid_file.read_text()), 0)
    except ProcessLookupError:
        return False
    return True


def test_what_a_script_leaves_behind_holds_nobody_up_and_is_ended_with_it(run_job: Launcher, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    body = """
    import virtualflow as vf
    from tests.train.small import make, mlp, regression, train

    vf.seed(0)
    trainer = make(mlp())
    if trainer.is_lead:
        daemonise({folder!r})
    train(trainer, regression())
    print(trainer.digest())
    """
    script.write_text(DAEMON + textwrap.dedent(body.format(folder=str(tmp_path))))
    finished = run_job(script, 2)
    assert finished.digest
    assert not is_alive(tmp_path / "daemon")
    assert not is_alive(tmp_path / "session")
    assert "left behind were ended" in finished.err()
    assert "sleep 600" in finished.err()


def test_a_worker_that_is_killed_takes_its_daemons_with_it(backend: LocalBackend, tmp_path: Path) -> None:
    script = DAEMON + TRAIN.replace(
        "trainer = make(mlp())", "trainer = make(mlp())\nif trainer.is_lead: daemonise(folder)"
    )

    def kill_lead(coordinator: Coordinator) -> None:
        os.kill(coordinator.state()["workers"][0]["pid"], signal.SIGKILL)

    finished = Driven(backend, tmp_path / "job", script + "print(trainer.digest())\n").run(2, [(3, kill_lead)])
    assert finished.outcome.code == 0, finished.failure
    assert not is_alive(tmp_path / "job" / "daemon")


@pytest.mark.parametrize("ends", ["worker", "job"])
def test_without_its_fork_server_a_worker_takes_its_daemons_with_it_too(tmp_path: Path, ends: str) -> None:
    script = DAEMON + TRAIN.replace(
        "trainer = make(mlp())", "trainer = make(mlp())\nif trainer.is_lead: daemonise(folder)"
    )
    with LocalBackend() as own:

        def kill_server(coordinator: Coordinator) -> None:
            os.kill(own._server.pid, signal.SIGKILL)
            if ends == "worker":
                os.kill(coordinator.state()["workers"][0]["pid"], signal.SIGKILL)

        finished = Driven(own, tmp_path / "job", script + "print(trainer.digest())\n").run(2, [(3, kill_server)])
        assert finished.outcome.code == 0, finished.failure
        assert not is_alive(tmp_path / "job" / "session")
    assert not is_alive(tmp_path / "job" / "daemon")


def test_a_fork_server_that_is_killed_ends_no_job_and_is_replaced(tmp_path: Path) -> None:
    script = TRAIN + "print(trainer.digest())\n"
    with LocalBackend() as own:

        def kill_server(_: Coordinator) -> None:
            os.kill(own._server.pid, signal.SIGKILL)

        def kill_worker(coordinator: Coordinator) -> None:
            os.kill(coordinator.state()["workers"][1]["pid"], signal.SIGKILL)

        def replaced(failures: int) -> Deed:
            return lambda coordinator: coordinator.roster.failures == failures and coordinator.roster.is_settled

        calm = Driven(own, tmp_path / "calm", script).run()
        plan = [
            *((3, kill_server), (6, to(3)), (9, kill_worker), (9, replaced(1))),
            *((12, kill_server), (15, kill_worker), (15, replaced(2))),
        ]
        finished = Driven(own, tmp_path / "disturbed", script).run(2, plan)
    assert_same(calm, finished)
    assert [len(change.devices) for change in finished.changes] == [3, 2, 3, 2, 3]


def test_a_defect_in_the_coordinator_costs_no_step(backend: LocalBackend, tmp_path: Path) -> None:
    driven = Driven(backend, tmp_path / "job", TRAIN, patience_seconds=10.0)

    def fail(_: Coordinator) -> None:
        if driven.step >= 5:
            raise ZeroDivisionError

    driven.tick = fail
    with pytest.raises(ZeroDivisionError):
        driven.run(2, [(10**6, to(3))])
    checkpoint = JobFolder(tmp_path / "job" / "job").latest_checkpoint()
    assert checkpoint is not None
    assert torch.load(checkpoint, weights_only=True)["position"]["global_step"] >= 5


def test_a_job_whose_fork_server_is_killed_as_it_begins_waits_for_the_next_one(tmp_path: Path) -> None:
    with LocalBackend() as own:
        os.kill(own._server.pid, signal.SIGKILL)
        finished = Driven(own, tmp_path / "job", TRAIN + "print(trainer.digest())\n").run(2)
        assert finished.digest


class _Recorder:
    """A backend whose workers end when a test says so; it keeps the ends that a worker's daemon would hold."""

    address = "127.0.0.1"

    def __init__(self) -> None:
        self.ended: list[Exit] = []
        self.held: list[int] = []
        self._wake, _ = os.pipe()

    def check(self, devices: object) -> None: ...
    def kill(self, process: int, signal_number: int) -> None: ...

    def start(self, spec: WorkerSpec, stdout: int, stderr: int, control: int) -> int:
        self.held += [os.dup(stdout), os.dup(stderr)]
        return len(self.held)

    def exits(self, timeout_seconds: float) -> list[Exit]:
        ended, self.ended = self.ended, []
        return ended

    def place_of(self, process: int) -> Place:
        return Place(self.address, process)

    def fileno(self) -> int:
        return self._wake


class _Owner:
    def heard(self, worker: Worker, message: object) -> None: ...
    def wrote(self, worker: Worker, stream: str, data: bytes) -> None: ...
    def ended(self, worker: Worker, code: int) -> None: ...
    def left_behind(self, worker: Worker, commands: object) -> None: ...


def test_a_worker_whose_output_somebody_still_holds_makes_room_for_the_next() -> None:
    backend = _Recorder()
    crew = Crew(backend, _Owner())
    spec = WorkerSpec("job", "", "0", ("0",), "s.py", (), "127.0.0.1", patience_seconds=1.0)
    for _ in range(2):
        worker = crew.start(spec)
        backend.ended.append(Exit(worker.process, 0))
        crew.pump(0.0)
    assert crew.is_gone
    crew.selector.close()
