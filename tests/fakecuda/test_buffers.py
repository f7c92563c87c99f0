"""Buffers that a forward writes give the CPU's bits on accelerators, whichever virtual nodes share one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Launcher

JOB = Path(__file__).with_name("buffer_job.py")


@pytest.mark.on_cuda_too
@pytest.mark.timeout(300)
def test_written_buffers(run_job: Launcher, run_on_cpus: Launcher) -> None:
    expected = run_on_cpus(JOB, 1)
    assert expected.outcome.code == 0, expected.failure
    assert len(expected.out().splitlines()) == 6
    for devices in (1, 2, 3):
        run = run_job(JOB, devices)
        assert run.outcome.code == 0, (devices, run.failure)
        assert run.out() == expected.out(), devices
