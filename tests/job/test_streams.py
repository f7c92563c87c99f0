"""Jobs over streams: the same bits on any devices, and each example once an epoch, through resizes and deaths."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import Finished
from tests.job.driven import Deed, Driven, after_a_loss, to
from tests.streams.rows import BLOCK, EACH, SHARDS, looked_at, once, reads, used
from virtualflow.backends.local import LocalBackend
from virtualflow.events.certificate import compare
from virtualflow.job.coordinator import Coordinator

EPOCHS = 3
STEPS = EPOCHS * 15  # 8 examples of 120 in each
TRAIN = """
import virtualflow as vf
from tests.streams.rows import Noting, rows
from tests.train.small import make, mlp

vf.seed(0)
stream = rows(folder).map(Noting(folder))
trainer = make(mlp(), lambda model, batch: (model(batch) ** 2).mean(), loader_workers=LOADERS)
for _ in trainer.epochs(3):
    for batch in trainer.batches(stream):
        trainer.step(batch)
        pace(trainer)
print(trainer.digest())
"""


def run(backend: LocalBackend, folder: Path, devices: int, *plan: tuple[int, Deed], loaders: str = "0") -> Finished:
    return Driven(backend, folder, TRAIN.replace("LOADERS", loaders)).run(devices, plan)


@pytest.fixture(scope="module")
def calm(backend: LocalBackend, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return run(backend, tmp_path_factory.mktemp("calm"), 1)


def kill_the_lead(coordinator: Coordinator) -> None:
    os.kill(next(worker.pid for worker in coordinator.status().workers if worker.device == "0"), signal.SIGKILL)


def assert_exactly_once(finished: Finished, folder: Path) -> None:
    """In every epoch, what was used in the attempts that were committed is each example, once."""
    assert [step.step for step in finished.steps] == list(range(STEPS))
    shards = used(folder)
    counted = {epoch: Counter[int]() for epoch in range(EPOCHS)}
    for step in finished.steps:
        for node in range(4):
            counted[step.epoch].update(shards[step.epoch, step.step % 15, node, step.attempts - 1])
    assert counted == {epoch: once() for epoch in range(EPOCHS)}


@pytest.mark.parametrize("devices", [2, 3])
def test_bits_do_not_depend_on_the_number_of_devices(
    calm: Finished, backend: LocalBackend, devices: int, tmp_path: Path
) -> None:
    finished = run(backend, tmp_path, devices)
    assert finished.digest == calm.digest
    assert compare(calm.certificate, finished.certificate).equal
    # What a plain loader reads.
    assert reads(tmp_path) == Counter(dict.fromkeys(once(), EPOCHS)) + looked_at(devices)
    assert_exactly_once(finished, tmp_path)


@pytest.mark.parametrize("loaders", ["0", "2"])
def test_each_example_counts_once_through_resizes_and_a_death(
    calm: Finished, backend: LocalBackend, loaders: str, tmp_path: Path
) -> None:
    plan = (5, to(3)), (12, kill_the_lead), (17, after_a_loss(to(1)))
    finished = run(backend, tmp_path, 2, *plan, loaders=loaders)
    assert finished.outcome.code == 0, finished.failure
    assert compare(calm.certificate, finished.certificate).equal
    assert len(finished.changes) >= 3
    assert_exactly_once(finished, tmp_path)
    # Whoever takes over a virtual node reads the block again at which it is; a loader process is a few steps ahead.
    moves = 4 * len(finished.changes)
    again = reads(tmp_path).total() - EPOCHS * SHARDS * EACH
    looked = looked_at(workers=4).total()  # two at first, the one that came, and one in the place of the dead
    assert again <= moves * BLOCK * (1 if loaders == "0" else 3) + looked
