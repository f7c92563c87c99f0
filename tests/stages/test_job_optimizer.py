"""The optimizer that the script sees is the job's: what is changed there counts wherever a weight is held."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import virtualflow as vf
from tests.stages.test_cut import DATA, linear, loss_fn
from virtualflow.errors import ConfigError
from virtualflow.train import solo
from virtualflow.train.stages.job_optimizer import NamedParameters


def trainer(**arguments: Any) -> vf.Trainer:
    solo.start_over()
    defaults: dict[str, Any] = {
        "stages": linear(),
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.1),
        "loss_fn": loss_fn,
        "batch_size": 4,
        "virtual_nodes": 2,
        "seed": 1,
    }
    return vf.Trainer(**defaults | arguments)


def trained(one: vf.Trainer, epochs: int = 2) -> str:
    for _ in one.epochs(epochs):
        for batch in one.batches(DATA):
            one.step(batch)
            for item in one.state:
                item.step()
    return one.digest()


def fading(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


def held(one: vf.Trainer) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in one._live.stages.held.parameters.items()}


def test_a_schedule_is_that_of_a_whole_model() -> None:
    staged = trainer(state=[fading])
    layers = [nn.Linear(3, 4), nn.Linear(4, 2)]
    for place, layer in enumerate(layers):
        for name, parameter in layer.named_parameters():
            parameter.data.copy_(held(staged)[f"{place}.{name}"])
    trained(staged)
    assert staged.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 2**4)
    solo.start_over()
    whole = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    plain = vf.Trainer(
        whole,
        optimizer,
        lambda model, batch: loss_fn(model(batch[0]), batch),
        batch_size=4,
        virtual_nodes=2,
        seed=1,
        state=[fading(optimizer)],
    )
    trained(plain)
    for name, parameter in whole.named_parameters():
        assert torch.equal(parameter, held(staged)[name]), name


def test_a_learning_rate_that_is_a_tensor_follows_a_schedule_too() -> None:
    as_tensor = trainer(optimizer=lambda params: torch.optim.SGD(params, lr=torch.tensor(0.25)), state=[fading])
    as_number = trainer(optimizer=lambda params: torch.optim.SGD(params, lr=0.25), state=[fading])
    assert trained(as_tensor) == trained(as_number)


def test_a_setting_changed_by_hand_counts_from_the_next_step_on() -> None:
    one, other = trainer(), trainer(optimizer=lambda params: torch.optim.SGD(params, lr=0.3))
    one.optimizer.param_groups[0]["lr"] = 0.3
    assert trained(one) == trained(other) != trained(trainer())


def test_what_an_optimizer_counts_in_its_groups_is_left_alone() -> None:
    class Counting(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                group["steps"] = group.get("steps", 0) + sum(p.grad is not None for p in group["params"])
            super().step(closure)

    one = trainer(optimizer=lambda params: Counting(params, lr=0.1), state=[fading])
    trained(one)
    counted = [optimizer.param_groups[0]["steps"] for optimizer in one._live.stages.held.optimizers.values()]
    assert counted == [8, 8]  # four steps of two weights each


def grouped(params: NamedParameters) -> torch.optim.Optimizer:
    parts = [[p for _, p in params.named() if p.ndim > 1], [p for name, p in params.named() if name.endswith("bias")]]
    return torch.optim.SGD([{"params": parts[0], "lr": 0.1}, {"params": parts[1], "lr": 0.0}], lr=1.0)


def test_groups_are_those_of_the_whole_model() -> None:
    one = trainer(optimizer=grouped)
    before = {name: value.clone() for name, value in held(one).items()}
    trained(one)
    same = {name for name, value in held(one).items() if torch.equal(value, before[name])}
    assert same == {"0.bias", "1.bias"}
    assert [len(group["params"]) for group in one.optimizer.param_groups] == [2, 2]
    one.optimizer.param_groups[1]["lr"] = 0.1
    for _ in one.epochs(3):
        for batch in one.batches(DATA):
            one.step(batch)
    assert not torch.equal(held(one)["1.bias"], before["1.bias"])


def test_weights_that_are_frozen_stay_as_they_are() -> None:
    stages = [linear()[0], lambda: nn.Linear(4, 2).requires_grad_(False)]
    one = trainer(stages=stages, optimizer=lambda params: torch.optim.SGD([p for p in params if p.requires_grad], 0.1))
    before = {name: value.clone() for name, value in held(one).items()}
    trained(one)
    changed = {name for name, value in held(one).items() if not torch.equal(value, before[name])}
    assert changed == {"0.weight", "0.bias"}


def first_alone(params: NamedParameters) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": params[:1]}, {"params": params[1:], "lr": 1.0}], lr=0.1)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (first_alone, "must depend on the weight alone"),
        (lambda params: torch.optim.SGD(params[:1], lr=0.1), "all the weights that it gets"),
    ],
)
def test_an_optimizer_that_can_not_be_made_stage_by_stage_is_refused(optimizer: Any, message: str) -> None:
    stages = [linear()[0], lambda: nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 2))]
    with pytest.raises(ConfigError, match=message):
        trainer(stages=stages, optimizer=optimizer)


def test_a_group_that_comes_later_is_refused() -> None:
    one = trainer()
    one.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    with pytest.raises(ConfigError, match="groups can't be added"):
        trained(one)
