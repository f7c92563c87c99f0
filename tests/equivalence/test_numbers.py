"""Numbers that are easily lost, on several devices: the same as on one, or refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Launcher

JOB = Path(__file__).with_name("numbers_job.py")


@pytest.mark.on_cuda_too(some=["scaler", "kept"])
@pytest.mark.parametrize("case", ["scaler", "kept", "huge", "half"])
def test_bits_do_not_depend_on_the_number_of_devices(run_job: Launcher, run_on_cpus: Launcher, case: str) -> None:
    """The first batch is short: with four virtual nodes, the second device has no examples in it."""
    alone, both = run_on_cpus(JOB, 1, [case]), run_job(JOB, 2, [case])
    assert alone.digest == both.digest
    assert alone.out() == both.out()
    if case != "kept":
        assert "True" in alone.digest  # nothing held the memory of the sums


@pytest.mark.on_cuda_too(some=[])
def test_the_audit_finds_a_forward_that_writes_data_in_later_steps(run_job: Launcher) -> None:
    ended = run_job(JOB, 2, ["data"], audit=True)
    assert "wrote to the parameter head.weight, through .data" in ended.failure


@pytest.mark.on_cuda_too(some=[])
def test_fast_finds_gradients_that_are_not_finite_on_every_worker(run_job: Launcher) -> None:
    ended = run_job(JOB, 2, ["nan"])
    assert "NonFiniteError" in ended.failure
    assert "gradient of 'head." in ended.failure
