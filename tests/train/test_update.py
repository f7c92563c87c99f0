"""The update of a step, alone: unscale, show, clip, step, in that order, and with the norm that all agree on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.train.several import peers_of
from virtualflow.testing import run_together
from virtualflow.train.peers import Peers
from virtualflow.train.step_settings import StepSettings
from virtualflow.train.update import Update, clip


@dataclass
class Reduced:
    """Stands for the reduction: only its parameters are asked for."""

    parameters: list[nn.Parameter]


class Scaler:
    """A gradient scaler that notes what it is asked for, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def get_scale(self) -> float:
        return 4.0

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        self.calls.append("unscale")
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad /= 4.0

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        self.calls.append("step")
        optimizer.step()

    def update(self) -> None:
        self.calls.append("update")


class Job:
    """A model of two weights, whose gradient is (3, 4)."""

    def __init__(self, peers: Peers | None = None, scaler: Any = None, **settings: Any) -> None:
        self.model = nn.Linear(2, 1, bias=False)
        nn.init.zeros_(self.model.weight)
        self.model.weight.grad = torch.tensor([[3.0, 4.0]])
        optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        chosen = StepSettings(lambda model, batch: None, 0, 1, 1, **settings)
        reduced: Any = Reduced(list(self.model.parameters()))
        self.update = Update(self.model, (optimizer,), reduced, chosen, scaler, peers or peers_of(1)[0])

    @property
    def weights(self) -> list[float]:
        weights: list[float] = self.model.weight.flatten().tolist()
        return weights


def test_without_a_limit_the_gradient_is_followed_as_it_is() -> None:
    job = Job()
    assert job.update.make(5.0, 0) == 5.0
    assert job.weights == [-3.0, -4.0]


@pytest.mark.parametrize("known", [5.0, None])
def test_a_gradient_above_the_limit_is_scaled_down_and_its_norm_reported(known: float | None) -> None:
    job = Job(clip_grad_norm=1.0)
    assert job.update.make(known, 0) == pytest.approx(5.0)
    assert job.weights == pytest.approx([-0.6, -0.8], rel=1e-5)


def test_a_gradient_below_the_limit_keeps_every_bit() -> None:
    gradient = torch.tensor([0.1, 0.2])
    clip([gradient], 1.0, 0.5)
    assert gradient.tolist() == torch.tensor([0.1, 0.2]).tolist()
    clip([], 1.0, 5.0)


def test_a_norm_that_is_no_number_does_not_pass_the_limit() -> None:
    gradient = torch.ones(2)
    clip([gradient], 1.0, math.nan)
    assert gradient.isnan().all()


def test_a_scaled_gradient_is_unscaled_before_anything_looks_at_it() -> None:
    scaler, seen = Scaler(), list[Tensor]()

    def show(model: nn.Module) -> None:
        seen.extend(parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None)

    job = Job(scaler=scaler, on_gradients=show)
    assert job.update.make(5.0, 0) == 1.25
    assert scaler.calls == ["unscale", "step", "update"]
    assert seen[0].flatten().tolist() == [0.75, 1.0]
    assert job.weights == [-0.75, -1.0]


def test_a_gradient_that_the_script_has_changed_is_measured_again_before_it_is_clipped() -> None:
    def halve(model: nn.Module) -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad /= 2.0

    job = Job(on_gradients=halve, clip_grad_norm=100.0)
    assert job.update.make(5.0, 0) == pytest.approx(2.5)
    assert job.weights == [-1.5, -2.0]


@pytest.mark.parametrize("mixed", [False, True])
def test_on_mixed_devices_all_take_the_leads_norm_to_the_bit(mixed: bool) -> None:
    jobs = [Job(peers, mixed=mixed) for peers in peers_of(2)]
    norms = [1.0 / 3.0, math.nextafter(1.0 / 3.0, 1.0)]
    agreed = run_together(*(lambda j=j, n=n: j.update.agreed(n, 0) for j, n in zip(jobs, norms, strict=True)))
    assert agreed == ([norms[0]] * 2 if mixed else norms)
