"""Processes around a job that die, or that a script leaves behind: the job goes on, and nothing is left."""

from __future__ import annotations

import itertools
import os
import resource
import signal
import subprocess
import textwrap
from pathlib import Path

import pytest
import torch

from tests.conftest import Launcher
from tests.job.driven import TRAIN, Deed, Driven, after_a_loss, to
from tests.job.test_joiners import assert_same
from virtualflow.backends.local import LocalBackend
from virtualflow.job.backend import Exit
from virtualflow.job.coordinator import Coordinator
from virtualflow.job.folder import JobFolder

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
    return is_running(int(pid_file.read_text()))


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def until_gone(driven: Driven, *pid_files: str) -> Deed:
    """Waits for the end of these processes, which must not take more than 100 turns of the coordinator."""
    turns = itertools.count()

    def deed(_: Coordinator) -> bool:
        alive = [name for name in pid_files if is_alive(driven.folder / name)]
        assert next(turns) < 100, f"still there: {alive}"
        return not alive

    return deed


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
        os.kill(coordinator.status().workers[0].pid, signal.SIGKILL)

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
            os.kill(own.server_pid, signal.SIGKILL)
            if ends == "worker":
                os.kill(coordinator.status().workers[0].pid, signal.SIGKILL)

        finished = Driven(own, tmp_path / "job", script + "print(trainer.digest())\n").run(2, [(3, kill_server)])
        assert finished.outcome.code == 0, finished.failure
        assert not is_alive(tmp_path / "job" / "session")
    assert not is_alive(tmp_path / "job" / "daemon")


def test_what_a_killed_fork_server_had_not_ended_yet_is_ended_by_whoever_inherits_it() -> None:
    with LocalBackend() as own:
        environment = Path(f"/proc/{own.server_pid}/environ").read_bytes().split(b"\0")
        marked = dict(os.fsdecode(entry).split("=", 1) for entry in environment if entry)
        with subprocess.Popen(["sleep", "600"], env=marked) as daemon:  # as a child of ours, as it would be then
            try:
                os.kill(own.server_pid, signal.SIGKILL)
                for _ in range(100):
                    own.exits(0.1)
                assert not is_running(daemon.pid)
            finally:
                daemon.kill()


def test_a_fork_server_that_is_killed_ends_no_job_and_is_replaced(tmp_path: Path) -> None:
    script = TRAIN + "print(trainer.digest())\n"
    with LocalBackend() as own:

        def kill_server(_: Coordinator) -> None:
            os.kill(own.server_pid, signal.SIGKILL)

        def kill_worker(coordinator: Coordinator) -> None:
            os.kill(coordinator.status().workers[1].pid, signal.SIGKILL)

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


class Poor(LocalBackend):
    """Has no descriptors left, for a while or until a worker ends, when it looks after its processes."""

    poor_for = 0
    poor_until_an_end = False

    def exits(self, timeout_seconds: float = 0.0) -> list[Exit]:
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        if self.poor_for or self.poor_until_an_end:
            self.poor_for = max(0, self.poor_for - 1)
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
        try:
            ended = super().exits(timeout_seconds)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        self.poor_until_an_end = self.poor_until_an_end and not ended
        return ended


def test_a_fork_server_that_is_killed_while_descriptors_are_short_is_replaced_later(tmp_path: Path) -> None:
    script = TRAIN + "print(trainer.digest())\n"
    with Poor() as own:

        def kill_server(_: Coordinator) -> None:
            own.poor_for = 20
            os.kill(own.server_pid, signal.SIGKILL)

        def kill_adopted(coordinator: Coordinator) -> bool:
            if own.poor_for:
                return False
            own.poor_for = 20
            os.kill(coordinator.status().workers[1].pid, signal.SIGKILL)
            return True

        calm = Driven(own, tmp_path / "calm", script).run()
        plan = [(3, kill_server), (4, kill_adopted), (6, after_a_loss(to(3)))]
        finished = Driven(own, tmp_path / "disturbed", script).run(2, plan)
    assert_same(calm, finished)


def test_daemons_that_nobody_had_a_descriptor_to_look_for_are_ended_later(tmp_path: Path) -> None:
    script = DAEMON + TRAIN.replace(
        "trainer = make(mlp())", "trainer = make(mlp())\nif trainer.is_lead: daemonise(folder)"
    )
    with Poor() as own:
        first_server = own.server_pid

        def kill_server(_: Coordinator) -> None:
            os.kill(first_server, signal.SIGKILL)

        def kill_adopted(coordinator: Coordinator) -> bool:
            if own.server_pid == first_server:
                return False  # nobody has adopted the workers yet
            own.poor_until_an_end = True
            os.kill(coordinator.status().workers[0].pid, signal.SIGKILL)
            return True

        driven = Driven(own, tmp_path / "job", script + "print(trainer.digest())\n")
        gone = after_a_loss(until_gone(driven, "session", "daemon"))
        finished = driven.run(2, [(3, kill_server), (5, kill_adopted), (5, gone)])
        assert finished.outcome.code == 0, finished.failure


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
        os.kill(own.server_pid, signal.SIGKILL)
        finished = Driven(own, tmp_path / "job", TRAIN + "print(trainer.digest())\n").run(2)
        assert finished.digest
