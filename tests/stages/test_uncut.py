"""Where nothing draws random numbers, and no weight is tied or norm clipped, a cut by itself changes no bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import virtualflow as vf
from tests.stages.models import MODELS, examples
from virtualflow.train import solo


class Whole(nn.Module):
    """The stages as one graph."""

    def __init__(self, stages: nn.ModuleList) -> None:
        super().__init__()
        self.stages = stages

    def forward(self, batch: list[torch.Tensor], *, reads_batch: bool) -> Any:
        first, *others = self.stages
        x = first(None, batch) if reads_batch else first(batch[0])
        for stage in others:
            x = stage(x)
        return x


def built(model: str) -> nn.ModuleList:
    torch.manual_seed(4)
    stages = nn.ModuleList(build() for build in MODELS[model]()["stages"])
    for module in stages.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return stages


def trained(trainer: vf.Trainer, model: str) -> list[str]:
    """The bits of the losses."""
    steps = (batch for _ in trainer.epochs(2) for batch in trainer.batches(examples(model, 20)))
    return [float(trainer.step(batch)).hex() for batch in steps]


@pytest.mark.parametrize("model", ["gpt", "resnet"])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_cut_model_has_the_bits_of_the_whole(model: str, recompute: bool) -> None:
    arguments = MODELS[model]()
    loss_fn, settings = arguments["loss_fn"], {"batch_size": 8, "virtual_nodes": 4, "seed": 3}
    make = lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9)  # noqa: E731
    solo.start_over()
    cut = built(model)
    staged = vf.Trainer(stages=list(cut), optimizer=make, loss_fn=loss_fn, recompute=recompute, **settings)
    losses = trained(staged, model)
    solo.start_over()
    whole = Whole(built(model))
    plain = vf.Trainer(
        whole,
        make(whole.parameters()),
        lambda module, batch: loss_fn(module(batch, reads_batch=model == "gpt"), batch),
        **settings,
    )
    assert trained(plain, model) == losses
    mine = staged._live.stages.held
    for name, value in (*whole.stages.named_parameters(), *whole.stages.named_buffers()):
        assert torch.equal(value, mine.parameters.get(name, mine.buffers.get(name))), name
