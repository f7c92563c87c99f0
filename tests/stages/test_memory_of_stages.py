"""A model that no device has the memory for trains on several, to the bits that one large device would give."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests import fakecuda
from tests.conftest import Launcher
from tests.fakecuda import build
from tests.stages.test_same_bits_with_stages import JOB, run
from virtualflow.backends.local import LocalBackend


@pytest.fixture(scope="module")
def run_on_gpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    if reason := build.why_not():
        pytest.skip(reason)
    environment = fakecuda.environment(4) | {"VF_HOME": str(tmp_path_factory.mktemp("gpu-home"))}
    with LocalBackend(environment=environment) as backend:
        yield Launcher(backend, tmp_path_factory.mktemp("jobs-on-gpus"))


@pytest.mark.timeout(400)
def test_a_model_that_fits_no_device_trains_on_four(run_on_gpus: Launcher) -> None:
    case = {"model": "wide", "epochs": 1}
    large = run(run_on_gpus, 1, peak=True, **case).out().split()
    limit = int(0.5 * int(large[0]))
    small = run_on_gpus(JOB, 1, [json.dumps(case | {"capacity": limit})])
    assert small.outcome.code != 0
    assert "out of memory" in small.failure
    assert run(run_on_gpus, 4, capacity=limit, **case).digest == large[1]
