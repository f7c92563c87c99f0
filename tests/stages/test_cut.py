"""What a cut model may be, what is refused by name, and what a step of it says when something is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

import virtualflow as vf
from tests.stages.models import MODELS, Block, examples
from virtualflow.core import faults
from virtualflow.core.job_description import JobDescription
from virtualflow.core.membership import JobContext
from virtualflow.core.memory_needs import MemoryNeeds
from virtualflow.errors import ConfigError, HiddenStateError, LossError, NonFiniteError
from virtualflow.train import solo
from virtualflow.train.stages.crossings import crossing
from virtualflow.train.stages.stage_cut import Cut
from virtualflow.train.stages.staging import refuse_without_stages

DATA = TensorDataset(torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(8, 2))


def loss_fn(output: Tensor, batch: list[Tensor]) -> Tensor:
    return mse_loss(output, batch[1])


def linear() -> list[Callable[[], nn.Module]]:
    return [lambda: nn.Linear(3, 4), lambda: nn.Linear(4, 2)]


class Three(nn.Module):
    def forward(self, x: Tensor, batch: Any, more: Any) -> Tensor:
        return x


def trained(**arguments: Any) -> vf.Trainer:
    """A Trainer that has made one epoch, alone in its job."""
    solo.start_over()
    defaults: dict[str, Any] = {
        "stages": linear(),
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.1),
        "loss_fn": loss_fn,
        "batch_size": 4,
        "virtual_nodes": 2,
        "seed": 1,
    }
    trainer = vf.Trainer(**defaults | arguments)
    for _ in trainer.epochs(1):
        for batch in trainer.batches(DATA):
            trainer.step(batch)
    return trainer


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": nn.Linear(1, 1)}, "a model is not supported together with stages"),
        ({"reduction": "fast"}, "reduction='fast'"),
        ({"state": [nn.Linear(1, 1)]}, "state= holds a Linear"),
        ({"state": [lambda optimizer: object()]}, "state= holds a object, which has no state_dict"),
        ({"on_gradients": print}, "on_gradients="),
        ({"backward": lambda loss: loss.backward()}, "backward="),
        ({"sharding": "state"}, "sharding="),
        ({"optimizer": torch.optim.SGD([nn.Parameter(torch.zeros(1))])}, "optimizer= is a function"),
        ({"optimizer": lambda params: None}, "optimizer= gave a NoneType"),
        ({"optimizer": lambda params: [torch.optim.SGD(params, lr=0.1)]}, "there is one optimizer, of all weights"),
        ({"loss_fn": None}, "give a function"),
        ({"copies": 0}, "copies=0"),
        ({"pipeline": "zero bubble"}, "'1f1b', 'gpipe'"),
        ({"stages": []}, "holds no stage"),
        ({"stages": [3]}, "expected a function"),
        ({"tied": {"1.weight": "0.none"}}, "no stage has a weight '0.none'"),
        ({"tied": {"0.weight": "0.bias"}}, "inside of the stage"),
        ({"tied": {"1.weight": "0.weight"}}, "one is of shape"),
        ({"stages": [lambda: nn.TransformerDecoderLayer(2, 1), Three]}, "stage 1 takes 3 arguments"),
        ({"stages": [lambda: torch.compile(nn.Linear(3, 2), backend="eager")]}, "stage 0 is compiled"),
        ({"stages": None, "model": nn.Linear(3, 2), "tied": {"1.weight": "0.weight"}}, "tied= belongs to stages="),
        ({"stages": None, "model": nn.Linear(3, 2), "recompute": True}, "recompute= belongs to stages="),
        ({"stages": None, "model": nn.Linear(3, 2), "pipeline": "gpipe"}, "pipeline= belongs to stages="),
    ],
)
def test_what_can_not_work_is_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trained(**arguments)


def test_a_weight_in_two_stages_must_be_said_to_be_tied() -> None:
    shared = nn.Linear(3, 3)
    with pytest.raises(ConfigError, match=r"'0.0.weight' and '1.0.weight' are one weight in two stages"):
        Cut([nn.Sequential(shared), nn.Sequential(shared)], {})


def test_tied_weights_stay_one() -> None:
    trainer = trained(
        stages=[lambda: nn.Linear(3, 3), nn.Tanh, lambda: nn.Linear(3, 3), lambda: nn.Linear(3, 2)],
        tied={"2.weight": "0.weight"},
    )
    held = trainer._live.stages.held
    assert held.modules[2].weight.data_ptr() == held.modules[0].weight.data_ptr()
    assert not torch.equal(held.modules[2].bias, held.modules[0].bias)


def test_modules_and_a_sequential_are_stages_too() -> None:
    vf.seed(1)
    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    torch.manual_seed(0)
    other = [nn.Linear(3, 4), nn.Linear(4, 2)]
    assert trained(stages=one).digest() == trained(stages=other).digest()


def test_the_cut_is_part_of_the_job_but_not_how_it_runs() -> None:
    digests = {
        trained(pipeline=pipeline, recompute=again).digest() for pipeline in ("1f1b", "gpipe") for again in (0, 1)
    }
    assert len(digests) == 1
    assert trained(seed=2).digest() not in digests


def test_nothing_is_built_before_it_is_held() -> None:
    built: list[str] = []

    def build() -> nn.Module:
        layer = nn.Linear(3, 2)
        built.append(layer.weight.device.type)
        return layer

    trained(stages=[build])
    assert built == ["meta", "cpu"]


def test_metrics_travel_with_the_loss() -> None:
    solo.start_over()
    trainer = vf.Trainer(
        stages=linear(),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        loss_fn=lambda output, batch: (
            loss_fn(output, batch),
            {"rows": len(output), "one": (len(output), len(output))},
        ),
        batch_size=4,
        virtual_nodes=2,
        seed=1,
    )
    for _ in trainer.epochs(1):
        for batch in trainer.batches(DATA):
            assert trainer.step(batch).metrics == {"rows": 4.0, "one": 1.0}


class Odd(nn.Module):
    """A stage that goes wrong in its own way."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.layer, self.way, self.calls = nn.Linear(3, 2), way, 0
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, batch: list[Tensor]) -> Any:
        self.calls += 1
        y = self.layer(batch[0])
        if self.way == "nan":
            return y * float("nan")
        if self.way == "gradient":
            return (y * 0.0).sqrt() + y
        if self.way == "counter":
            return y * self.calls
        if self.way == "integers":
            self.count += int(batch[0].sum() * 1000)
        if self.way == "born":
            self.register_buffer("late", torch.zeros(1))
        return "text" if self.way == "text" else y


@pytest.mark.parametrize(
    ("way", "error", "message"),
    [
        ("nan", NonFiniteError, "the loss is nan"),
        ("gradient", NonFiniteError, "stage 0, the gradient of '0.layer"),
        ("counter", HiddenStateError, "another loss"),
        ("integers", HiddenStateError, "integers of stage 0"),
        ("born", ConfigError, "makes a buffer"),
        ("text", LossError, "stage 0 returned a value of type str"),
    ],
)
def test_a_step_that_goes_wrong_says_where(way: str, error: type[Exception], message: str) -> None:
    stages = [lambda: Odd(way), nn.Identity] if way != "text" else [lambda: Odd(way), lambda: nn.Linear(2, 2)]
    with pytest.raises(error, match=message):
        trained(stages=stages)


def test_running_maxima_are_refused() -> None:
    def build() -> nn.Module:
        layer = nn.Linear(3, 2)
        layer.register_buffer("most", torch.full((1,), -torch.inf))
        return layer

    with pytest.raises(ConfigError, match=r"'0.most' holds values that are not finite"):
        trained(stages=[build])


def test_what_crosses_is_dense_aligned_and_keeps_its_strides() -> None:
    rows = torch.randn(4, 6)
    assert crossing(rows.t()).stride() == rows.t().stride()
    assert crossing(rows[:, 1:3]).is_contiguous()
    assert crossing(torch.randn(9)[1:]).data_ptr() % 64 == 0
    numbers = torch.arange(3)
    assert crossing(numbers).data_ptr() != numbers.data_ptr()


def test_several_tensors_may_skip_a_stage() -> None:
    class First(Block):
        def forward(self, _: None, batch: list[Tensor]) -> Any:
            return batch[0].unsqueeze(0).transpose(0, 1), torch.arange(len(batch[0]))

    class Middle(nn.Linear):
        def forward(self, x: tuple[Tensor, Tensor]) -> Any:
            return super().forward(x[0]), x[0], x[1]

    class Last(nn.Linear):
        def forward(self, x: tuple[Tensor, ...]) -> Tensor:
            return super().forward(x[0] + x[1]).squeeze(1)

    stages = [lambda: First(8), lambda: Middle(3, 3), lambda: Last(3, 2)]
    assert trained(stages=stages).digest() == trained(stages=stages, recompute=True).digest()


def test_every_cell_reaches_its_points() -> None:
    seen: list[str] = []
    faults.arm(seen.append)
    try:
        trained(**MODELS["resnet"]() | {"stages": linear(), "loss_fn": loss_fn})
    finally:
        faults.arm(None)
    # Two steps, of which the first is made twice, of two stages for two virtual nodes.
    assert seen.count("forward") == seen.count("backward") == 3 * 2 * 2


def test_a_generator_of_examples_is_enough_data() -> None:
    solo.start_over()
    trainer = vf.Trainer(**MODELS["gpt"](), batch_size=4, virtual_nodes=2, seed=1)
    data = examples("gpt", 16)
    losses = [trainer.step(batch) for batch in trainer.steps(3, lambda size: [data.tensors[0][:size]])]
    assert len(losses) == 3


def test_memory_that_is_stated_for_stages_is_not_silently_that_of_a_whole_model(tmp_path: Path) -> None:
    described = JobDescription("", memory=MemoryNeeds((1, 1)))
    with pytest.warns(UserWarning, match="the memory of 2 stages, and this Trainer has none"):
        refuse_without_stages(JobContext("job", tmp_path, described), {})
