"""A model that no device has the memory for trains on several, to the bits that one large device would give."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests import fakecuda
from tests.conftest import Launcher
from tests.fakecuda import build
from tests.stages.test_same_bits_with_stages import EVERYTHING, JOB, MODELS, assert_same_bits, run
from virtualflow.backends.local import LocalBackend


@pytest.fixture(scope="module")
def run_on_gpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    if reason := build.why_not():
        pytest.skip(reason)
    environment = fakecuda.environment(4) | {"VF_HOME": str(tmp_path_factory.mktemp("gpu-home"))}
    with LocalBackend(environment=environment) as backend:
        yield Launcher(backend, tmp_path_factory.mktemp("jobs-on-gpus"))


def plain(model: str, capacity: int | None) -> subprocess.CompletedProcess[str]:
    """Plain PyTorch on one such device."""
    command = [sys.executable, "-m", "tests.stages.plain_job", json.dumps([model, capacity])]
    environment = os.environ | fakecuda.environment(1)
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("model", MODELS if EVERYTHING else ["gpt"])
def test_a_model_that_fits_no_device_trains_on_four(run_on_gpus: Launcher, run_on_cpus: Launcher, model: str) -> None:
    case = {"model": f"large {model}", "epochs": 1}
    needed = plain(case["model"], None)
    assert needed.returncode == 0, needed.stderr
    limit = int(0.75 * int(needed.stdout))
    assert "out of memory" in plain(case["model"], limit).stderr
    alone = run_on_gpus(JOB, 1, [json.dumps(case | {"capacity": limit})])
    assert alone.outcome.code != 0
    assert "out of memory" in alone.failure
    four = run(run_on_gpus, 4, capacity=limit, **case)
    assert_same_bits(run(run_on_cpus, **case), four)
