"""Random schedules of joins, leaves, SIGKILL, SIGSTOP and SIGTERM over a few hundred steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.harness import Chaos, assert_undisturbed, schedule
from tests.conftest import Finished
from virtualflow.backends.local import LocalBackend

EPOCHS = 40
STEPS = EPOCHS * 6


@pytest.fixture(scope="module")
def calm(cpus: LocalBackend, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    finished = Chaos(cpus, tmp_path_factory.mktemp("calm") / "job", devices=1).run(epochs=EPOCHS, evaluate=False)
    assert finished.outcome.code == 0, finished.failure
    return finished


@pytest.mark.on_cuda_too(some=[])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_random_schedule_changes_no_bit(backend: LocalBackend, tmp_path: Path, calm: Finished, seed: int) -> None:
    chaos = Chaos(backend, tmp_path / "job", patience_seconds=3.0)
    finished = chaos.run(schedule(seed, 8, STEPS), epochs=EPOCHS, evaluate=False)
    print(f"seed {seed}: {dict(chaos.done)}")
    assert_undisturbed(finished, calm)
