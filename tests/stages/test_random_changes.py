"""Kills and resizes in random order, and deaths while stages move: a job in stages ends with the same bits."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.chaos.harness import Chaos, Strike
from tests.conftest import Finished, Launcher
from tests.stages.test_elastic_stages import struck, undisturbed
from tests.stages.test_same_bits_with_stages import JOB, run
from virtualflow.backends.local import LocalBackend

CASE = {"model": "gpt", "epochs": 8, "copies": 2}


@pytest.fixture(scope="module")
def calm(run_on_cpus: Launcher) -> Finished:
    return run(run_on_cpus, **CASE)


@pytest.mark.parametrize("seed", range(3))
def test_a_random_series(cpus: LocalBackend, tmp_path: Path, calm: Finished, seed: int) -> None:
    chance = random.Random(seed)
    strikes = [
        Strike(step, chance.choice(["kill", "resize", "term"]), chance.randrange(4), chance.randint(2, 4))
        for step in sorted(chance.sample(range(2, 20), 4))
    ]
    chaos = Chaos(cpus, tmp_path / "job", devices=3, spared=2, script=JOB)
    undisturbed(chaos.run_held(strikes, **CASE), calm)


@pytest.mark.parametrize(
    ("point", "device"),
    [("send state", "0"), ("send state", "1"), ("receive state", "0"), ("receive state", "2"), ("joining", "3")],
)
def test_a_worker_killed_while_stages_move(
    cpus: LocalBackend, tmp_path: Path, calm: Finished, point: str, device: str
) -> None:
    strikes = [Strike(3, "resize", devices=4), Strike(8, "resize", devices=2), Strike(12, "resize", devices=3)]
    chaos = Chaos(cpus, tmp_path / "job", devices=3, script=JOB)
    finished = chaos.run_held(strikes, faults=[(device, point, 1)], **CASE)
    assert struck(finished) == 1
    undisturbed(finished, calm)
