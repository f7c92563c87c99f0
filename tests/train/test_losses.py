"""What loss_fn returns and does: weighted exactly, refused by name, and without a trace when a step fails."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import virtualflow as vf
from tests.train.small import make, mlp, mse, regression, train
from tests.train.test_right import Frozen
from virtualflow.errors import HiddenStateError, LossError, NonFiniteError

pytestmark = pytest.mark.on_cuda_too


def half_mean(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return model(batch[0]).mean().bfloat16()


@pytest.mark.parametrize("scaler", [None, 4096.0])
@pytest.mark.parametrize("reduction", ["exact", "fast"])
def test_a_mean_in_half_precision_is_weighted_exactly(reduction: str, scaler: float | None) -> None:
    sizes = [257, 131, 3]
    data = torch.utils.data.TensorDataset(
        torch.repeat_interleave(torch.tensor([[1.0], [0.0], [64.0]]), torch.tensor(sizes), 0)
    )
    model = nn.Linear(1, 1, bias=False)
    optimizer = Frozen(model.parameters(), lr=1.0)
    trainer = make(
        model, half_mean, optimizer=optimizer, batch_size=391, virtual_nodes=sizes, reduction=reduction,
        sampler=lambda _: range(391), grad_scaler=torch.amp.GradScaler("cpu", init_scale=scaler) if scaler else None,
    )  # fmt: skip
    train(trainer, data)
    expected = float(data.tensors[0].double().mean())
    assert float(optimizer.seen[0]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("reduction", ["exact", "fast"])
def test_a_model_in_half_precision_with_parts_that_are_not_always_used(reduction: str) -> None:
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(6, 1), nn.Linear(6, 1)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.one(inputs) if len(inputs) == 3 else self.other(inputs)  # type: ignore[no-any-return]

    def gradients(dtype: torch.dtype) -> list[Tensor]:
        vf.seed(0)
        model = Parts().to(dtype)
        optimizer = Frozen(model.parameters(), lr=1.0)
        loss_fn = lambda m, b: mse_loss(m(b[0].to(dtype)), b[1].to(dtype))  # noqa: E731
        train(
            make(model, loss_fn, optimizer=optimizer, batch_size=14, virtual_nodes=[3, 5, 3, 3], reduction=reduction),
            regression(14),
        )
        return [gradient.double() for gradient in optimizer.seen]

    for half, double in zip(gradients(torch.bfloat16), gradients(torch.float64), strict=True):
        assert torch.allclose(half, double, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("weight", [math.nan, -1.0, math.inf, torch.tensor(math.nan), "8", None, torch.ones(3)])
def test_weights_that_can_not_be_are_refused(weight: Any) -> None:
    message = "evaluate" if isinstance(weight, dict) else "weight"
    with pytest.raises(LossError, match=f"loss_fn returned.*{message}"):
        train(make(loss_fn=lambda m, b: (mse(m, b), weight)), regression())
    with pytest.raises(LossError, match="metric_fn returned"):
        make().evaluate(regression(), lambda m, b: (1.0, weight))


@pytest.mark.parametrize(
    "kind", [int, float, np.float32, np.int64, torch.tensor, lambda n: torch.tensor([n]), lambda n: torch.tensor(n > 1)]
)
def test_weights_of_any_kind_of_number_are_fine(kind: Any) -> None:
    losses = train(make(loss_fn=lambda m, b: (2 * mse(m, b), kind(2))), regression(16))
    assert all(math.isfinite(loss) for loss in losses)


def test_a_loss_that_is_a_float_is_refused() -> None:
    with pytest.raises(LossError, match=r"returned a float.*without \.item"):
        train(make(loss_fn=lambda m, b: mse(m, b).item()), regression())


@pytest.mark.parametrize("returned", [lambda loss: loss, lambda loss: loss.detach(), lambda loss: loss.item()])
def test_a_backward_inside_loss_fn_is_named(returned: Any) -> None:
    def loss_fn(model: nn.Module, batch: list[Tensor]) -> Any:
        loss = mse(model, batch)
        loss.backward()
        return returned(loss)

    with pytest.raises(LossError, match=r"loss_fn has called backward\(\)"):
        train(make(loss_fn=loss_fn), regression())


def test_a_graph_that_is_kept_from_one_virtual_node_to_the_next_is_named() -> None:
    kept: list[Tensor] = []

    def loss_fn(model: nn.Module, batch: list[Tensor]) -> Tensor:
        kept.append(mse(model, batch))
        return torch.stack(kept).mean()

    with pytest.raises(HiddenStateError, match="an earlier call of loss_fn has computed and kept"):
        train(make(loss_fn=loss_fn), regression())


def test_gradients_of_inputs_inside_loss_fn_are_fine() -> None:
    def loss_fn(model: nn.Module, batch: list[Tensor]) -> Tensor:
        inputs = batch[0].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
        return mse(model, batch) + gradient.square().mean()

    assert len(train(make(loss_fn=loss_fn), regression())) == 5


class Poisoned(nn.Module):
    """A finite loss whose gradient is not: the root of zero. And batch norm, which leaves a trace."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(6), nn.Linear(6, 1)
        self.poison = False

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = self.head(self.norm(inputs))
        return outputs + (outputs * 0).sqrt() if self.poison else outputs  # type: ignore[no-any-return]


MESSAGES = {"gradient": r"'head\..*not updated", "loss": r"loss is nan.*not updated", "weight": "add up to 0"}


@pytest.mark.parametrize("what", MESSAGES)
@pytest.mark.parametrize("reduction", ["exact", "fast"])
def test_a_step_that_fails_leaves_the_model_as_it_was(reduction: str, what: str) -> None:
    vf.seed(0)
    model = Poisoned()
    odd = False

    def loss_fn(model: nn.Module, batch: list[Tensor]) -> Any:
        loss = mse(model, batch)
        if odd and what == "weight":
            return loss, 0.0
        return (loss * math.nan if odd and what == "loss" else loss), 1.0

    trainer = make(model, loss_fn, reduction=reduction)
    for _ in trainer.epochs(2):
        for number, batch in enumerate(trainer.batches(regression())):
            odd = number == 2
            model.poison = odd and what == "gradient"
            if not odd:
                trainer.step(batch)
                continue
            before = trainer.digest()
            with pytest.raises((NonFiniteError, LossError), match=MESSAGES[what]):
                trainer.step(batch)
            assert trainer.digest() == before
            assert all(parameter.grad is None for parameter in model.parameters())
    assert trainer.global_step == 8


@pytest.mark.filterwarnings("ignore:loss_fn returned")
def test_a_gradient_that_overflows_when_it_is_divided_is_named() -> None:
    with pytest.raises(NonFiniteError, match=r"norm is inf.*summed weight"):
        train(make(loss_fn=lambda m, b: (mse(m, b) * 1e20, 1e-30)), regression())


@pytest.mark.parametrize("where", ["first step", "replaced"])
def test_a_forward_that_writes_data_is_refused_by_name(where: str) -> None:
    class Writing(nn.Linear):
        calls = 0

        def forward(self, inputs: Tensor) -> Tensor:
            self.calls += 1
            if where == "first step":
                self.weight.data /= self.weight.data.norm()
            elif self.calls > 20:
                self.weight.data = self.weight.data / self.weight.data.norm()
            return super().forward(inputs)

    vf.seed(0)
    with pytest.raises(HiddenStateError, match=r"wrote to the parameter weight"):
        train(make(Writing(6, 1)), regression(80))


def test_a_parameter_that_is_born_in_forward_is_refused_by_name() -> None:
    class Born(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 1)

        def forward(self, inputs: Tensor) -> Tensor:
            if not hasattr(self, "scale"):
                self.scale = nn.Parameter(torch.ones(()))
            return self.head(inputs) * self.scale  # type: ignore[no-any-return]

    with pytest.raises(HiddenStateError, match=r"added or removed the parameter scale"):
        train(make(Born()), regression())


def test_a_scaler_is_ready_before_its_first_use() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    make(mlp(), grad_scaler=scaler)
    assert scaler._scale is not None
    assert scaler.get_scale() == 8.0
