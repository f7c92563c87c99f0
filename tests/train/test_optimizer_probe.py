"""Whether an optimizer's state can be spread over devices: it is asked, and left as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from virtualflow.errors import ConfigError
from virtualflow.train.sharded.cut_state import differences
from virtualflow.train.sharded.optimizer_probe import check_hooks, choices, may_cut

FIRST_ORDER = [
    "SGD",
    "Adam",
    "AdamW",
    "NAdam",
    "RAdam",
    "Adamax",
    "Adagrad",
    "Adadelta",
    "RMSprop",
    "ASGD",
    "Rprop",
]


class Own(Optimizer):
    """An optimizer of the user's own, which can be spoiled."""

    def __init__(self, params: Any, rule: Callable[[Own, Any, Any], Any]) -> None:
        super().__init__(params, {"lr": 0.1})
        self.rule = rule
        self.calls = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.calls += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(self.rule(self, group, parameter))


def norm_of_all(optimizer: Own, group: Any, parameter: Any) -> Any:
    return parameter.grad / torch.nn.utils.get_total_norm([p.grad for p in group["params"]])


def norm_of_the_tensor(optimizer: Own, group: Any, parameter: Any) -> Any:
    return parameter.grad / parameter.grad.norm()


def noise(optimizer: Own, group: Any, parameter: Any) -> Any:
    return torch.randn_like(parameter)


def global_state(optimizer: Own, group: Any, parameter: Any) -> Any:
    optimizer.state["all"]["steps"] = 1
    return parameter.grad


def asked(make: Callable[[Any], Optimizer]) -> bool:
    model = nn.Linear(8, 4, bias=False)
    optimizer = make(model.parameters())
    before = copy.deepcopy(optimizer.state_dict()), dict(vars(optimizer)), model.weight.detach().clone()
    drawn = torch.get_rng_state()
    try:
        return may_cut(optimizer, 0, model.weight)
    finally:
        after = optimizer.state_dict(), dict(vars(optimizer)), model.weight.detach()
        assert not differences(before[0], after[0])
        assert not differences(before[2], after[2])
        assert before[1].keys() == after[1].keys()
        assert before[1].get("calls") == after[1].get("calls")
        assert torch.equal(torch.get_rng_state(), drawn)


@pytest.mark.parametrize("name", FIRST_ORDER)
def test_torchs_first_order_optimizers_may_be_cut(name: str) -> None:
    assert asked(lambda parameters: getattr(torch.optim, name)(parameters, lr=0.1))


@pytest.mark.parametrize("choice", ["foreach", "fused"])
def test_whichever_kernel_they_use(choice: str) -> None:
    assert asked(lambda parameters: torch.optim.AdamW(parameters, **{choice: True}))


@pytest.mark.parametrize("name", ["Adafactor", "Muon"])
def test_those_that_look_at_rows_and_columns_get_whole_tensors(name: str) -> None:
    assert not asked(lambda parameters: getattr(torch.optim, name)(parameters, lr=0.1))


def test_those_that_look_at_a_whole_tensor_get_whole_tensors() -> None:
    assert not asked(lambda parameters: Own(parameters, norm_of_the_tensor))


@pytest.mark.parametrize(
    ("rule", "reason"), [(norm_of_all, "beside it"), (noise, "beside it"), (global_state, "'all'")]
)
def test_those_that_need_more_than_one_tensor_are_refused_by_name(rule: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"Own.*{reason}"):
        asked(lambda parameters: Own(parameters, rule))


def test_a_state_dict_of_its_own_is_refused_by_name() -> None:
    class Secretive(torch.optim.SGD):
        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "more": 1}

    with pytest.raises(ConfigError, match="Secretive has a state_dict of its own"):
        may_cut(Secretive([nn.Parameter(torch.ones(2))], lr=0.1), 0, torch.ones(2))


def test_hooks_of_the_script_do_not_hear_of_it() -> None:
    heard = []
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    optimizer.register_step_post_hook(lambda *_: heard.append(1))
    assert may_cut(optimizer, 0, torch.ones(2))
    assert not heard


def test_a_rate_that_warms_up_from_zero_hides_nothing() -> None:
    def rule(optimizer: Own, group: Any, parameter: Any) -> Any:
        return group["lr"] * norm_of_the_tensor(optimizer, group, parameter)

    def make(parameters: Any) -> Optimizer:
        optimizer = Own(parameters, rule)
        optimizer.param_groups[0]["lr"] = 0.0
        return optimizer

    assert not asked(make)


def test_a_count_that_depends_on_which_tensors_there_are_is_refused_by_name() -> None:
    """A device that holds nothing of a group would never count, and go on from a wrong count once it holds some."""

    def counting(optimizer: Own, group: Any, parameter: Any) -> Any:
        group["steps"] = optimizer.calls
        return parameter.grad

    with pytest.raises(ConfigError, match="Own counts in its groups"):
        asked(lambda parameters: Own(parameters, counting))


def test_another_choice_is_another_question() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.0, momentum=0.9)
    (group,) = optimizer.param_groups
    before = choices(group)
    group["lr"] = 0.1
    assert choices(group) == before, "rates change in each step"
    group["weight_decay"] = 0.1
    assert choices(group) != before


def test_hooks_that_would_meet_blocks_are_refused() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    check_hooks(optimizer)
    optimizer.register_step_post_hook(lambda *_: None)
    with pytest.raises(ConfigError, match="SGD has hooks around its step"):
        check_hooks(optimizer)
