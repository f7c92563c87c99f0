"""What a worker does before its script runs."""

from __future__ import annotations

import os

import pytest

from virtualflow.core.device_choice import Accelerator
from virtualflow.core.job_description import JobDescription
from virtualflow.job import worker
from virtualflow.job.spec import WorkerSpec
from virtualflow.train import accelerators


@pytest.mark.parametrize(("device", "accelerator"), [("0", 0), ("5", 5), ("10.0.0.2/1", 0)])
def test_a_joiner_claims_the_accelerator_of_its_own_device(
    monkeypatch: pytest.MonkeyPatch, device: str, accelerator: int
) -> None:
    claimed: list[int] = []
    present = tuple(Accelerator("cuda", "V100", f"{os.getpid()}-{device}-{index}") for index in range(8))
    monkeypatch.setattr(accelerators, "present", lambda: present)
    monkeypatch.setattr(accelerators, "use", claimed.append)
    spec = WorkerSpec("job", JobDescription("", device_type="cuda"), "", device, ("0", "1"), "", 30.0, joins=True)
    assert worker.claim_device(spec) == "cuda"
    assert claimed == [accelerator]
