"""The promise: how many devices ran a job, and which virtual node ran where, changes no bit."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import Finished, Launcher
from virtualflow.events.certificate import compare

JOB = Path(__file__).with_name("job.py")
OTHERS = "VF_RANDOM" in os.environ  # other and more examples, as in make chaos


def run(
    run_job: Launcher, devices: int = 1, owners: list[int] | None = None, audit: bool = False, **case: Any
) -> Finished:
    finished = run_job(JOB, devices, [json.dumps(case)], owners=owners, audit=audit)
    assert finished.outcome.code == 0, finished.failure + finished.err()
    return finished


def assert_same_bits(one: Finished, other: Finished) -> None:
    verdict = compare(one.certificate, other.certificate)
    assert verdict.equal, verdict
    assert one.digest == other.digest


@pytest.mark.on_cuda_too(some=["conv"])
@pytest.mark.parametrize("model", ["conv", "mlp"])
def test_bits_do_not_depend_on_the_number_of_devices(run_job: Launcher, run_on_cpus: Launcher, model: str) -> None:
    case = {"model": model, "virtual_nodes": 6, "batch_size": 18, "examples": 45, "clip_grad_norm": 0.5}
    alone = run(run_on_cpus, 1, **case)
    for devices in range(2, 7):
        assert_same_bits(alone, run(run_job, devices, **case))


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, Any], int, list[int]]:
    """A job, a number of devices, and a mapping that may be scattered and uneven."""
    nodes = draw(st.integers(1, 7))
    sizes = draw(
        st.one_of(
            st.just([draw(st.integers(1, 5))] * nodes), st.lists(st.integers(1, 6), min_size=nodes, max_size=nodes)
        )
    )
    batch_size = sum(sizes)
    devices = draw(st.integers(1, min(nodes, 5)))
    owners = list(range(devices)) + [draw(st.integers(0, devices - 1)) for _ in range(nodes - devices)]
    case = {
        "model": draw(st.sampled_from(["conv", "mlp"])) if min(sizes) > 1 else "mlp",
        "virtual_nodes": sizes,
        "batch_size": batch_size,
        "examples": batch_size + draw(st.integers(2, 2 * batch_size)),
        "optimizer": draw(st.sampled_from(["sgd", "adamw"])),
        "clip_grad_norm": draw(st.sampled_from([None, 0.1])),
        "loader_workers": draw(st.sampled_from([0, 0, 1, 2])),
        "augment": draw(st.booleans()),
        "drop_last": draw(st.booleans()),
    }
    return case, devices, draw(st.permutations(owners))


@settings(
    max_examples=60 if OTHERS else 15, deadline=None, derandomize=not OTHERS, suppress_health_check=list(HealthCheck)
)
@given(cases(), st.one_of(st.none(), st.tuples(st.integers(1, 3), st.integers(1, 3))))
def test_bits_do_not_depend_on_the_mapping(
    run_job: Launcher,
    tmp_path_factory: pytest.TempPathFactory,
    drawn: tuple[dict[str, Any], int, list[int]],
    resume: tuple[int, int] | None,
) -> None:
    case, devices, owners = drawn
    alone = run(run_job, 1, **case | {"loader_workers": 0})
    if resume is not None:
        # Stopped after a few steps on some devices, resumed on others.
        stop_at, first_devices = resume[0], min(resume[1], len(owners))
        checkpoint = str(tmp_path_factory.mktemp("resume") / "checkpoint.pt")
        run(run_job, first_devices, **case | {"stop_at": min(stop_at, len(alone.steps) - 1), "save": checkpoint})
        case = case | {"load": checkpoint}
    assert_same_bits(alone, run(run_job, devices, owners=owners, **case))


@pytest.mark.on_cuda_too(some=["2"])
@pytest.mark.parametrize("stop_at", [2, 4])
def test_a_job_resumed_on_other_devices_ends_with_the_same_bits(
    run_job: Launcher, run_on_cpus: Launcher, tmp_path: Path, stop_at: int
) -> None:
    checkpoint = str(tmp_path / "checkpoint.pt")
    case = {"examples": 56, "virtual_nodes": [3, 5, 4, 4], "clip_grad_norm": 1.0}
    whole = run(run_on_cpus, 1, **case)
    run(run_job, 3, stop_at=stop_at, save=checkpoint, **case)
    resumed = run(run_job, 2, load=checkpoint, **case)
    assert resumed.steps[0].step == stop_at
    assert_same_bits(whole, resumed)


@pytest.mark.on_cuda_too(some=[])
def test_fast_runs_agree_up_to_rounding_and_are_not_called_equal(run_job: Launcher) -> None:
    alone, three = (run(run_job, devices, reduction="fast", virtual_nodes=6, batch_size=18) for devices in (1, 3))
    assert [step.loss for step in alone.steps] == pytest.approx([step.loss for step in three.steps], rel=1e-4)
    verdict = compare(alone.certificate, three.certificate)
    assert not verdict.equal
    assert "fast" in verdict.summary
