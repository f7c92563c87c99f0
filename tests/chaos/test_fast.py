"""The paper's own scheme under fire: equal up to rounding, whoever joined, left or was killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.chaos.harness import Chaos, Strike
from virtualflow.backends.local import LocalBackend


@pytest.mark.on_cuda_too
@pytest.mark.parametrize("reduction", ["fast", "exact"])
def test_layers_are_frozen_and_unfrozen_while_workers_come_and_go(
    backend: LocalBackend, cpus: LocalBackend, tmp_path: Path, reduction: str
) -> None:
    options: dict[str, Any] = {"epochs": 6, "evaluate": False, "reduction": reduction, "frozen_epochs": [1, 2, 4]}
    calm = Chaos(cpus, tmp_path / "calm", devices=1).run(**options)
    chaos = Chaos(backend, tmp_path / "job", devices=2)
    strikes = [Strike(8, "resize", devices=4), Strike(13, "kill", 1), Strike(20, "resize", devices=3)]
    finished = chaos.run_held(strikes, **options)
    assert finished.outcome.code == 0, finished.failure
    assert chaos.done == {"resize": 2, "kill": 1}
    assert not any("mismatch" in finished.err(str(device)) for device in range(8))
    assert [change.cause for change in finished.changes].count("loss") == 1
    assert [step.loss for step in finished.steps] == pytest.approx([step.loss for step in calm.steps], rel=1e-3)
    if reduction == "exact":
        assert finished.digest == calm.digest
