"""Objects that hooks of the script keep something in have it again after a change of workers."""

from __future__ import annotations

import copy
import io
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from virtualflow.errors import CheckpointError
from virtualflow.train.kept_attributes import KeptAttributes
from virtualflow.train.variables import is_library


class Meter:
    def __init__(self) -> None:
        self.total = 0.0


class Callback:
    """Keeps what people's callbacks keep: numbers, averages of the weights, copies of the model, the model itself."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.weights = list(model.parameters())
        self.losses: list[float] = []
        self._average = {name: value.detach().clone() for name, value in model.named_parameters()}
        self.copies = [copy.deepcopy(model)]
        self.meter = Meter()
        self.generator = torch.Generator().manual_seed(0)
        self.bar = open

    def work(self) -> None:
        self.losses += [0.5] * 2000
        self.meter.total += 3
        torch.rand(2, generator=self.generator)
        with torch.no_grad():
            for value in (*self._average.values(), *self.copies[0].parameters()):
                value.add_(1)


def sent(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


def test_attributes_of_a_callback_are_kept_and_the_model_is_left_alone() -> None:
    model = nn.Linear(2, 1)
    first, second = Callback(model), Callback(model)
    first.work()
    kept = KeptAttributes(model)
    held = second._average
    kept.put(second, sent(kept.take(first)), "Callback")
    assert second.losses == first.losses
    assert second.meter.total == 3
    assert second._average is held
    for one, other in zip(
        [*first._average.values(), *first.copies[0].parameters()],
        [*second._average.values(), *second.copies[0].parameters()],
        strict=True,
    ):
        assert torch.equal(one, other)
    assert torch.rand(1, generator=second.generator) == torch.rand(1, generator=first.generator)
    assert second.model is model
    assert second.weights[0] is model.weight
    assert not kept.take(first, private=False)["values"].keys() & {"_average"}


def test_an_object_that_this_worker_has_not_made_is_named() -> None:
    model = nn.Linear(2, 1)
    first, second = Callback(model), Callback(model)
    second.copies = []
    kept = KeptAttributes(model)
    with pytest.raises(CheckpointError, match=r"keeps Callback\.copies"):
        kept.put(second, kept.take(first), "Callback")


def test_data_that_never_change_are_not_kept() -> None:
    class Module(nn.Linear):
        rows: Any = None

    model = Module(2, 1)
    model.rows, model.centre = torch.randn(10, 2), torch.zeros(2)
    kept = KeptAttributes(model)
    data = kept.data_of(model)
    model.centre += 1
    values = kept.without_data(model, data)["values"]
    assert "centre" in values
    assert "rows" not in values


def test_what_is_installed_is_not_the_scripts_wherever_it_lies() -> None:
    module = ModuleType("other")
    module.__file__ = "/opt/base/lib/python3.11/site-packages/other/__init__.py"
    assert is_library(module)
    assert is_library(torch)
    module.__file__ = "/home/me/project/other.py"
    assert not is_library(module)
