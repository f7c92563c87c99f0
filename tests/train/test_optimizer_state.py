"""An optimizer's state is put back to the bit, and what can't be is refused by name."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from virtualflow.errors import CheckpointError, ConfigError
from virtualflow.train import optimizer_state


def trained(dtype: torch.dtype = torch.float32, *, sums: torch.dtype = torch.float32) -> torch.optim.Adam:
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(3, dtype=dtype)) for _ in range(2)]
    optimizer = torch.optim.Adam([{"params": [p], "lr": 0.1 * n} for n, p in enumerate(parameters, 1)])
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    for held in optimizer.state.values():
        held["exp_avg"] = held["exp_avg"].to(sums) + torch.tensor(2.0**-20, dtype=sums)
    return optimizer


def sums_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [held["exp_avg"] for held in optimizer.state.values()]


def test_sums_of_another_dtype_than_their_parameter_keep_every_bit() -> None:
    saved = copy.deepcopy(trained(torch.bfloat16, sums=torch.float32).state_dict())
    fresh = trained(torch.bfloat16, sums=torch.bfloat16)
    optimizer_state.put(fresh, saved)
    for held, number in zip(sums_of(fresh), saved["state"], strict=True):
        assert held.dtype == torch.float32
        assert torch.equal(held, saved["state"][number]["exp_avg"])
        assert held is not saved["state"][number]["exp_avg"]


def test_the_state_of_another_optimizer_is_refused() -> None:
    with pytest.raises(CheckpointError, match="the checkpoint's optimizer is not this one"):
        optimizer_state.put(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1), trained().state_dict())


def test_groups_follow_those_that_the_job_has_changed_on_its_way() -> None:
    parameters = {name: nn.Parameter(torch.zeros(1)) for name in ("a", "b", "c")}
    optimizer = torch.optim.SGD([{"params": [parameters["a"], parameters["b"]], "lr": 0.5}], lr=0.1)
    optimizer_state.regroup(optimizer, parameters, [["b"], ["a", "c"]])
    assert optimizer_state.group_names(optimizer, parameters) == [["b"], ["a", "c"]]
    assert optimizer.param_groups[0]["lr"] == 0.5
    with pytest.raises(CheckpointError, match="'d', which is not in this model"):
        optimizer_state.regroup(optimizer, parameters, [["b", "d"]])


def test_settings_are_those_that_were_saved_and_no_others() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)
    scale = torch.tensor(2.0)
    saved = optimizer_state.settings(optimizer)
    assert "params" not in saved[0]
    optimizer.param_groups[0]["made_up"] = 1
    optimizer_state.put_settings(optimizer, [saved[0] | {"lr": 0.3, "scale": scale}])
    assert optimizer_state.settings(optimizer) == [saved[0] | {"lr": 0.3, "scale": scale}]
    assert optimizer.param_groups[0]["scale"] is not scale
    assert len(optimizer.param_groups[0]["params"]) == 1


class Hiding(torch.optim.SGD):
    """Keeps *kept* where its state_dict does not look."""

    def __init__(self, kept: Any) -> None:
        super().__init__([nn.Parameter(torch.zeros(1))], lr=0.1)
        self.kept = kept


class Telling(Hiding):
    """The same, with a state_dict of its own."""

    def state_dict(self) -> dict[str, Any]:
        return {"kept": self.kept}


@pytest.mark.parametrize(
    ("kept", "what"),
    [
        ([{"sum": torch.zeros(1)}], "tensors"),
        (torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1), r"another optimizer \(SGD\)"),
    ],
)
def test_what_an_optimizer_hides_is_refused_by_the_name_of_its_attribute(kept: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=rf"Hiding keeps {what} in its attribute 'kept'"):
        optimizer_state.check(Hiding(kept))
    optimizer_state.check(Telling(kept))


def test_its_own_parameters_and_plain_values_may_be_kept_anywhere() -> None:
    optimizer = Hiding({"rate": 0.5})
    optimizer.kept = [optimizer.param_groups[0]["params"][0], "text"]
    optimizer_state.check(optimizer)


def test_sums_follow_their_parameters_to_where_these_are_and_counts_stay() -> None:
    made, moved = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1, device="meta"))
    optimizer = torch.optim.SGD([moved], lr=0.1)
    optimizer.state = {moved: {"sum": torch.zeros_like(made), "step": torch.tensor(3.0)}}  # type: ignore[assignment]
    optimizer_state.follow_parameters(optimizer)
    assert {key: value.device.type for key, value in optimizer.state[moved].items()} == {"sum": "meta", "step": "cpu"}
