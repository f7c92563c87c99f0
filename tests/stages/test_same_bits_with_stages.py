"""The promise, with a model that is cut: which device runs which stage of which virtual node changes no bit."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Finished, Launcher
from virtualflow.events.certificate import compare

EVERYTHING = "VF_ALL_GRIDS" in os.environ
MODELS = ["gpt", "resnet"] + ["llama"] * (find_spec("transformers") is not None)
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
def alone(run_on_cpus: Launcher) -> Callable[..., Finished]:
    """The run on one device that others must equal, made once for each model."""
    return cache(lambda model, **case: run(run_on_cpus, model=model, **case))


# All of it with VF_ALL_GRIDS, as in make chaos. A Llama goes from 2 x 2 to pipelines in test_elastic_stages.py.
SAMPLE = {"gpt": [*GRIDS], "resnet": ["a pipeline of 3", "2 x 2", "in both directions"], "llama": []}
SOME = [(model, grid) for model in MODELS for grid in GRIDS if EVERYTHING or grid in SAMPLE[model]]


@pytest.mark.on_cuda_too(some=["2 x 2"])
@pytest.mark.parametrize(("model", "grid"), SOME)
def test_bits_do_not_depend_on_the_grid(
    run_job: Launcher, alone: Callable[..., Finished], model: str, grid: str
) -> None:
    cells = GRIDS[grid]
    assert_same_bits(alone(model), run(run_job, 1 + max(map(max, cells)), cells, model=model))


@pytest.mark.parametrize("model", MODELS if EVERYTHING else ["gpt", "resnet"])
@pytest.mark.parametrize("grid", GRIDS if EVERYTHING else ["one whole and a pipeline"])
def test_outputs_do_not_depend_on_the_grid(
    run_on_cpus: Launcher, alone: Callable[..., Finished], model: str, grid: str
) -> None:
    """On CPUs: for evaluations, an accelerator may choose another kernel than for training."""
    cells = GRIDS[grid]
    other = run(run_on_cpus, 1 + max(map(max, cells)), cells, model=model, evaluate=True)
    assert_same_bits(alone(model, evaluate=True), other)


@pytest.mark.on_cuda_too(some=["3"])
@pytest.mark.parametrize("model", MODELS if EVERYTHING else ["gpt"])
@pytest.mark.parametrize("devices", [2, 3, 4])
def test_bits_do_not_depend_on_copies_schedule_or_recomputation(
    run_job: Launcher, alone: Callable[..., Finished], model: str, devices: int
) -> None:
    other = {"copies": 2, "pipeline": "gpipe", "recompute": True}
    assert_same_bits(alone(model), run(run_job, devices, model=model, **other))


@pytest.mark.on_cuda_too(some=[])
def test_a_loss_scale_that_is_too_large_is_made_smaller_everywhere(
    run_job: Launcher, alone: Callable[..., Finished]
) -> None:
    scaled = {"model": "gpt", "loss_scale": 2.0**126}
    one, other = alone(**scaled), run(run_job, 3, **scaled)
    assert_same_bits(one, other)
    norms = [float.fromhex(step.norm_bits or "") for step in one.steps]
    assert not math.isfinite(norms[0])
    assert math.isfinite(norms[-1])


def test_a_loss_scale_that_is_a_power_of_two_changes_no_bit(alone: Callable[..., Finished]) -> None:
    assert_same_bits(alone("gpt"), alone("gpt", loss_scale=1024.0))
