"""The promise, with a model that is cut: which device runs which stage of which virtual node changes no bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Finished, Launcher
from virtualflow.events.certificate import compare

JOB = Path(__file__).with_name("job.py")
# Stages down, virtual nodes across.
GRIDS = {
    "a pipeline of 2": [[0] * 4] * 2 + [[1] * 4] * 2,
    "a pipeline of 3": [[0] * 4] * 2 + [[1] * 4] + [[2] * 4],
    "a pipeline of 4": [[stage] * 4 for stage in range(4)],
    "data parallel": [[0, 0, 1, 1]] * 4,
    "2 x 2": [[0, 0, 2, 2]] * 2 + [[1, 1, 3, 3]] * 2,
    "interleaved": [[0] * 4, [1] * 4, [0] * 4, [1] * 4],
    "one whole and a pipeline": [[0, 1, 1, 1]] * 2 + [[0, 2, 2, 2]] * 2,
    "two pipelines that share their end": [[0, 1, 0, 1], [0, 1, 0, 1], [2, 1, 2, 1], [2, 2, 2, 2]],
    "in both directions": [[0, 1, 0, 1]] * 2 + [[1, 0, 1, 0]] * 2,
}


def run(run_job: Launcher, devices: int = 1, cells: list[list[int]] | None = None, **case: Any) -> Finished:
    finished = run_job(JOB, devices, [json.dumps(case)], cells=cells)
    assert finished.outcome.code == 0, finished.failure + finished.err()
    return finished


def said(finished: Finished) -> str:
    """What the leads have printed: the last line is the digest."""
    texts = (text for (_, stream), text in finished.printed.text.items() if stream == "stdout")
    return b"".join(texts).decode()


def assert_same_bits(one: Finished, other: Finished) -> None:
    verdict = compare(one.certificate, other.certificate)
    assert verdict.equal, verdict
    assert said(one) == said(other) != ""


@pytest.fixture(scope="module")
def alone(run_on_cpus: Launcher) -> dict[str, Finished]:
    return {model: run(run_on_cpus, model=model, evaluate=True) for model in ("gpt", "resnet")}


@pytest.fixture(scope="module")
def trained_alone(run_on_cpus: Launcher) -> dict[str, Finished]:
    """Without evaluations, for which an accelerator may choose another kernel than a CPU."""
    return {model: run(run_on_cpus, model=model) for model in ("gpt", "resnet")}


@pytest.mark.parametrize("model", ["gpt", "resnet"])
@pytest.mark.parametrize("grid", GRIDS)
def test_bits_do_not_depend_on_the_grid(run_job: Launcher, alone: dict[str, Finished], model: str, grid: str) -> None:
    cells = GRIDS[grid]
    devices = 1 + max(map(max, cells))
    assert_same_bits(alone[model], run(run_job, devices, cells, model=model, evaluate=True))


@pytest.mark.on_cuda_too(some=["3"])
@pytest.mark.parametrize("model", ["gpt", "resnet"])
@pytest.mark.parametrize("devices", [2, 3, 4])
def test_bits_do_not_depend_on_copies_schedule_or_recomputation(
    run_job: Launcher, trained_alone: dict[str, Finished], model: str, devices: int
) -> None:
    other = {"copies": 2, "pipeline": "gpipe", "recompute": True}
    assert_same_bits(trained_alone[model], run(run_job, devices, model=model, **other))
