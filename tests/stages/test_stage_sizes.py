"""What a stage takes on the device that holds it, after a step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import nn

import virtualflow as vf
from tests.stages.models import MODELS, examples
from virtualflow.train import solo


def of_gpt(stage: nn.Module) -> int:
    """A value, a sum and Adam's two for each weight; Adam's count of steps for each tensor."""
    return sum(p.numel() * (4 + 8 + 2 * 4) + 4 for p in stage.parameters())


def of_resnet(stage: nn.Module) -> int:
    """A value, a sum and a momentum for each weight; a value and a sum for each element of a buffer."""
    buffers = sum(buffer.nbytes + 8 * buffer.numel() for buffer in stage.buffers())
    return sum(p.numel() * (4 + 8 + 4) for p in stage.parameters()) + buffers


@pytest.mark.parametrize(("model", "expected"), [("gpt", of_gpt), ("resnet", of_resnet)])
def test_weights_sums_buffers_and_optimizer_state_are_counted(model: str, expected: Callable[[nn.Module], int]) -> None:
    solo.start_over(solo.Solo())
    trainer = vf.Trainer(**MODELS[model](), batch_size=4, virtual_nodes=2, seed=0)
    membership = solo.current()
    assert membership.stage_sizes == ()
    for _ in trainer.epochs(1):
        for batch in trainer.batches(examples(model, 4)):
            trainer.step(batch)
    sizes = [expected(build()) for build in MODELS[model]()["stages"]]  # a tied weight counts where it is used
    assert membership.stage_sizes == tuple(enumerate(sizes))
