"""What becomes of workers when the membership changes: real jobs, on the points where timing is all."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.job.driven import TRAIN, Driven, to
from virtualflow.backends.local import LocalBackend
from virtualflow.errors import MappingError
from virtualflow.job.backend import Exit
from virtualflow.job.coordinator import Coordinator

pytestmark = pytest.mark.on_cuda_too


class Noted:
    """A backend that remembers how each worker ended."""

    def __init__(self, backend: LocalBackend) -> None:
        self._backend = backend
        self.codes: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def exits(self, timeout_seconds: float = 0.0) -> list[Exit]:
        ended = self._backend.exits(timeout_seconds)
        self.codes |= {end.process: end.code for end in ended}
        return ended


def nothing(_: Coordinator) -> None:
    """What a job is kept slow for until then: a notice is on its way."""


def pids(coordinator: Coordinator) -> dict[str, int]:
    return {worker.device: worker.pid for worker in coordinator.status().workers}


def test_a_worker_that_is_told_to_go_leaves_with_exit_code_0_and_the_job_goes_on_without_it(
    backend: LocalBackend, tmp_path: Path
) -> None:
    noticed: list[int] = []

    def tell_the_lead(coordinator: Coordinator) -> None:
        noticed.append(pids(coordinator)["0"])
        os.kill(noticed[0], signal.SIGTERM)

    noted = Noted(backend)
    driven = Driven(noted, tmp_path, TRAIN)  # type: ignore[arg-type]
    finished = driven.run(3, [(3, tell_the_lead), (20, nothing)])
    assert finished.outcome.code == 0, finished.failure
    assert noted.codes[noticed[0]] == 0
    assert [(change.cause, change.left) for change in finished.changes] == [("resize", ["0"])]
    assert driven.coordinator.roster.failures == 0
    assert len(finished.steps) == 100


def test_the_last_worker_that_is_told_to_go_leaves_a_checkpoint(backend: LocalBackend, tmp_path: Path) -> None:
    driven = Driven(backend, tmp_path, TRAIN)
    plan = [(3, lambda coordinator: os.kill(pids(coordinator)["0"], signal.SIGTERM)), (70, nothing)]
    finished = driven.run(1, plan)
    assert (finished.outcome.code, driven.coordinator.status().state) == (0, "CANCELLED")
    (checkpoint,) = finished.folder.glob("checkpoints/*")
    assert checkpoint.name == f"step-{len(finished.steps):09d}.pt"


def test_a_resize_that_comes_after_the_last_boundary_does_not_hold_up_the_end(
    backend: LocalBackend, tmp_path: Path
) -> None:
    script = (
        TRAIN
        + """
(folder / "trained").touch()
while not (folder / "published").exists():
    time.sleep(0.01)
"""
    )

    def resize_when_trained(coordinator: Coordinator) -> None:
        if not resized and (tmp_path / "trained").exists():
            resized.append(4)
            coordinator.resize(4)
        if coordinator.roster.pending is not None:
            (tmp_path / "published").touch()

    resized: list[int] = []
    driven = Driven(
        backend, tmp_path, script, patience_seconds=600.0
    )  # nobody waits that long for those who can't join any more
    driven.tick = resize_when_trained
    finished = driven.run(2)
    assert finished.outcome.code == 0, finished.failure
    assert (tmp_path / "published").exists()


def test_a_survivor_that_is_busy_when_another_worker_dies_is_left_alone(backend: LocalBackend, tmp_path: Path) -> None:
    script = """
import os, signal, virtualflow as vf
from tests.train.small import make, mlp, mse, regression
from virtualflow.train import solo

device = solo.installed().device
def loss_fn(model, batch):
    if trainer.global_step == 3 and not (folder / device).exists():
        (folder / device).touch()
        if device == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        if device == "2":
            time.sleep(4.0)  # a long forward: it will hear of the death when it comes to its collective
    return mse(model, batch)

vf.seed(0)
trainer = make(mlp(), loss_fn=loss_fn)
for _ in trainer.epochs(2):
    for batch in trainer.batches(regression()):
        trainer.step(batch)
"""
    driven = Driven(backend, tmp_path, script)
    finished = driven.run(3)
    assert finished.outcome.code == 0, finished.failure
    assert driven.coordinator.roster.failures == 1
    assert (tmp_path / "2").exists()
    assert len(finished.steps) == 10


def test_a_worker_that_is_told_to_go_leaves_a_long_evaluation(
    backend: LocalBackend, cpus: LocalBackend, tmp_path: Path
) -> None:
    script = """
import os, signal, virtualflow as vf
from tests.train.small import make, mlp, mse, regression
from virtualflow.train import solo

device = solo.installed().device
def metric_fn(model, batch):
    if device == "1":
        (folder / "evaluated").open("a").write("x")
        if not (folder / "told").exists():
            (folder / "told").touch()
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.5)
    return mse(model, batch) * len(batch[0]), len(batch[0])

vf.seed(0)
trainer = make(mlp())
for _ in trainer.epochs(2):
    for batch in trainer.batches(regression()):
        trainer.step(batch)
    print(trainer.evaluate(regression(400), metric_fn))
"""
    calm = Driven(cpus, tmp_path / "calm", script).run(1)
    driven = Driven(backend, tmp_path, script)
    finished = driven.run(3)
    assert finished.outcome.code == 0, finished.failure
    assert driven.coordinator.roster.failures == 0
    assert [(change.cause, change.left) for change in finished.changes] == [("loss", ["1"])]
    assert len((tmp_path / "evaluated").read_text()) < 20  # of about 67 shards that were its own
    assert finished.out() == calm.out()


def test_a_second_trainer_keeps_its_bits_though_nobody_can_join_it(
    backend: LocalBackend, cpus: LocalBackend, tmp_path: Path
) -> None:
    script = """
import virtualflow as vf
from tests.train.small import make, mlp, mse, regression

for number in range(2):
    vf.seed(number)
    trainer = make(mlp(), seed=number)
    for _ in trainer.epochs(4):
        for batch in trainer.batches(regression()):
            trainer.step(batch)
            pace(trainer)
            if number == 1 and trainer.global_step == 1:
                (folder / "second").touch()
                while (folder / "held").exists():
                    time.sleep(0.01)
    print(trainer.digest())
"""
    calm = Driven(cpus, tmp_path / "calm", script).run(1)
    refusals: list[str] = []

    def grow_again(coordinator: Coordinator) -> None:
        if not refusals and (tmp_path / "second").exists():
            try:
                coordinator.resize(4)
            except MappingError as error:
                refusals.append(str(error))
            coordinator.resize(1)
            (tmp_path / "held").unlink()

    driven = Driven(backend, tmp_path, script)
    driven.tick = grow_again
    (tmp_path / "held").touch()
    finished = driven.run(2, [(3, to(3))])
    assert finished.outcome.code == 0, finished.failure
    assert "first Trainer" in refusals[0]
    assert finished.out() == calm.out()


def test_stopping_survives_a_death_on_the_way(backend: LocalBackend, tmp_path: Path) -> None:
    def stop_and_kill(coordinator: Coordinator) -> None:
        coordinator.stop(checkpoint=True)
        os.kill(pids(coordinator)["0"], signal.SIGKILL)

    driven = Driven(backend, tmp_path, TRAIN)
    finished = driven.run(3, [(3, to(4)), (5, stop_and_kill), (70, nothing)])
    assert (finished.outcome.code, driven.coordinator.status().state) == (0, "CANCELLED")
    assert len(finished.steps) < 100
    assert (finished.folder / "checkpoints" / f"step-{len(finished.steps):09d}.pt").exists()
