"""Gradients made to break an exact sum: the accumulators, hashed after every step, do not depend on the mapping.

Final digests alone would not see a missing grid: a plain float64 sum rounds to the same float32 almost always.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Launcher
from tests.equivalence.test_same_bits import assert_same_bits, run
from virtualflow.events.certificate import compare

CASE: dict[str, Any] = {"model": "mlp", "virtual_nodes": 8, "batch_size": 32, "examples": 100, "clip_grad_norm": 0.1}


@pytest.mark.on_cuda_too(some=["extremes"])
@pytest.mark.parametrize("adversary", ["spikes", "zeros then not", "denormals", "extremes", "nan"])
def test_adversarial_sums_do_not_depend_on_the_mapping(
    run_job: Launcher, run_on_cpus: Launcher, adversary: str
) -> None:
    case = CASE | {"adversary": adversary, "on_nan": "continue"}
    alone = run(run_on_cpus, 1, audit=True, **case)
    for devices, owners in ((2, [0, 1, 1, 0, 0, 1, 0, 1]), (3, None)):
        other = run(run_job, devices, owners, audit=True, **case)
        assert [step.accumulator for step in alone.steps] == [step.accumulator for step in other.steps]
        assert [step.attempts for step in alone.steps] == [step.attempts for step in other.steps]
        assert_same_bits(alone, other)


@pytest.mark.on_cuda_too(some=[])
def test_zeros_and_spikes_replay_a_step_at_most_once(run_job: Launcher) -> None:
    for adversary in ("spikes", "zeros then not"):
        steps = run(run_job, 2, adversary=adversary, **CASE).steps
        assert steps[0].attempts >= 2  # the first step measures
        assert all(step.attempts <= 2 for step in steps)


def test_a_plain_sum_is_caught(run_job: Launcher) -> None:
    case = CASE | {"adversary": "extremes", "break_the_grid": True}
    alone, three = (run(run_job, devices, audit=True, **case) for devices in (1, 3))
    assert [step.accumulator for step in alone.steps] != [step.accumulator for step in three.steps]
    verdict = compare(alone.certificate, three.certificate)
    assert not verdict.equal
    assert "the sums of the exact reduction" in (verdict.what or "")
