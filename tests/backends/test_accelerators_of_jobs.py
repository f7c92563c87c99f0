"""Jobs get the accelerators of a machine, each worker one of its own: on CUDA devices made for tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import fakecuda
from tests.conftest import Launcher
from tests.fakecuda import build
from virtualflow.backends.local import LocalBackend
from virtualflow.errors import LaunchError
from virtualflow.system import device_locks

pytestmark = pytest.mark.skipif(build.why_not() is not None, reason=build.why_not() or "")
SCRIPT = """
import virtualflow as vf
from tests.train.small import make, mlp

vf.seed(0)
model = mlp()
make(model)
print(next(model.parameters()).device)
"""


@pytest.fixture
def two_gpus(vf_home: Path) -> Iterator[LocalBackend]:
    with LocalBackend(environment=fakecuda.environment(2), device_type="auto") as backend:
        yield backend


@pytest.mark.timeout(300)
def test_a_worker_takes_a_free_one_and_is_told_who_has_the_others(two_gpus: LocalBackend, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    run = Launcher(two_gpus, tmp_path)
    first, second = (each.identity for each in two_gpus.accelerators)
    device_locks.claim([first], "job 77")
    taken = run(script)
    assert taken.outcome.code == 0, taken.failure
    assert taken.out().splitlines()[-1] == "cuda:1"
    device_locks.claim([second], "job 78")
    refused = run(script)
    assert refused.outcome.code != 0
    assert f"{first} by job 77, {second} by job 78" in refused.failure
    with pytest.raises(LaunchError, match=r"needs 3 accelerator device.*has 2 .2 x Fake GPU"):
        run(script, devices=3)


TRAINS = """
import torch
from tests.train.small import make, regression, train

trainer = make()
train(trainer, regression(), steps=1)
print(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
"""


@pytest.mark.timeout(300)
def test_each_worker_has_one_of_those_that_are_not_hidden_and_says_what_its_bits_depend_on(
    vf_home: Path, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(TRAINS)
    environment = fakecuda.environment(4) | {"CUDA_VISIBLE_DEVICES": "3,1"}
    with LocalBackend(environment=environment, device_type="auto") as backend:
        run = Launcher(backend, tmp_path)
        finished = run(script, devices=2)
        assert finished.outcome.code == 0, finished.failure
        taken = {finished.out(device).splitlines()[-1] for device in "01"}
        assert taken == {f"GPU-fake-{environment[fakecuda.MACHINE]}-{index}" for index in (3, 1)}
        facts = finished.certificate.facts
        assert facts["device_type"] == "Fake GPU"
        assert facts["accelerator"]["cudnn.deterministic"] == "True"
        assert facts["accelerator"]["deterministic algorithms"] == "True"
        with pytest.raises(LaunchError, match=r"needs 3 accelerator device.*has 2"):
            run(script, devices=3)
