"""What a stage takes on the device that holds it, after a step."""

from __future__ import annotations

import pytest
import torch

import virtualflow as vf
from tests.stages.models import MODELS, examples
from virtualflow.train import solo

VALUE, SUM, ADAM, STEP = 4, 8, 8, 4  # bytes for each weight, and for each tensor a count of steps


@pytest.mark.parametrize("model", ["wide", "gpt"])
def test_weights_sums_and_optimizer_state_are_counted(model: str) -> None:
    solo.start_over(solo.Solo())
    trainer = vf.Trainer(**MODELS[model](), batch_size=4, virtual_nodes=2, seed=0)  # type: ignore[arg-type]
    membership = solo.current()
    assert membership.stage_sizes == ()
    for _ in trainer.epochs(1):
        for batch in trainer.batches(examples(model, 4)):
            trainer.step(batch)
    built = [build() for build in MODELS[model]()["stages"]]  # type: ignore[attr-defined]
    expected = [sum(p.numel() * (VALUE + SUM + ADAM) + STEP for p in stage.parameters()) for stage in built]
    assert [stage for stage, _ in membership.stage_sizes] == [0, 1, 2, 3]
    assert all(isinstance(stage, torch.nn.Module) for stage in built)
    assert [size for _, size in membership.stage_sizes] == expected
