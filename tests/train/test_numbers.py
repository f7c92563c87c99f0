"""Numbers that are easily lost: gradients that are kept, that are huge or tiny, and parameters that come and go."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.utils import prune

import virtualflow as vf
from tests.train.small import make, mlp, mse, regression, train
from tests.train.test_right import Frozen
from virtualflow.errors import ConfigError, NonFiniteError


class Difference(torch.optim.SGD):
    """Steps by the difference between this gradient and the last one, which it keeps as *keep* says."""

    def __init__(self, parameters: Any, keep: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.keep = keep

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                previous = self.state[parameter].get("previous", torch.zeros_like(parameter))
                parameter -= 0.1 * (2 * parameter.grad - previous)
                self.state[parameter]["previous"] = self.keep(parameter.grad)


def differing(keep: Any, dtype: torch.dtype = torch.float32) -> str:
    vf.seed(0)
    model = mlp().to(dtype)
    loss = lambda m, b: mse_loss(m(b[0].to(dtype)), b[1].to(dtype))  # noqa: E731
    trainer = make(model, loss, optimizer=Difference(model.parameters(), keep))
    train(trainer, regression())
    return trainer.digest()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "keep",
    [lambda grad: grad, torch.Tensor.detach, lambda grad: grad.view(-1).view(grad.shape)],
    ids=["itself", "detached", "a view"],
)
def test_an_optimizer_may_keep_a_gradient_without_a_copy(keep: Any, dtype: torch.dtype) -> None:
    assert differing(keep, dtype) == differing(torch.Tensor.clone, dtype)


def test_a_script_may_keep_the_gradients_of_all_steps() -> None:
    def gradients(keep: Any) -> list[Tensor]:
        vf.seed(0)
        model = mlp()
        trainer, kept = make(model), []
        for _ in trainer.epochs(2):
            for batch in trainer.batches(regression()):
                trainer.step(batch)
                kept.append(keep(model[0].weight.grad))
        return kept

    expected = torch.stack(gradients(torch.Tensor.clone))
    assert torch.equal(torch.stack(gradients(lambda grad: grad)), expected)
    assert torch.equal(torch.stack([torch.from_numpy(a) for a in gradients(torch.Tensor.numpy)]), expected)


@pytest.mark.parametrize("name", ["SGD", "Adam", "Rprop", "Adafactor"])
def test_ordinary_optimizers_have_the_sums_stay_where_they_are(name: str) -> None:
    vf.seed(0)
    model = mlp()
    trainer = make(model, optimizer=getattr(torch.optim, name)(model.parameters(), lr=0.01))
    places = set()
    for _ in trainer.epochs(2):
        for batch in trainer.batches(regression()):
            trainer.step(batch)
            places.add(model[0].weight.grad.data_ptr())
    assert len(places) == 1


@pytest.mark.parametrize("scale", [1e-300, 1e-60, 1.0, 1e60, 1e150, 1e290])
def test_float64_gradients_of_any_size_keep_their_bits(scale: float) -> None:
    vf.seed(0)
    model = mlp().double()
    optimizer = Frozen(model.parameters(), lr=1.0)

    def loss_fn(model: nn.Module, batch: list[Tensor]) -> Tensor:
        return mse_loss(model(batch[0].double()), batch[1].double()) * scale

    trainer = make(model, loss_fn, optimizer=optimizer, clip_grad_norm=math.inf)
    data = regression(8)
    train(trainer, data)
    model.zero_grad()
    loss_fn(model, list(data.tensors)).backward()
    for mine, true in zip(optimizer.seen, [p.grad for p in model.parameters()], strict=True):
        assert float(((mine - true) / scale).abs().max() / (true / scale).abs().max()) < 1e-11
    events = trainer.events_path.read_text()  # type: ignore[union-attr]
    norm = math.hypot(*torch.cat([grad.flatten() for grad in optimizer.seen]).tolist())
    recorded = float.fromhex(events.split('"norm_bits": "')[1].split('"')[0])
    assert recorded == pytest.approx(norm, rel=1e-12)
    assert norm > 0


def test_gradients_that_float64_can_not_sum_are_refused_by_name() -> None:
    vf.seed(0)
    model = nn.Linear(1, 1, bias=False).double()
    data = torch.utils.data.TensorDataset(torch.full((8, 1), 8e307, dtype=torch.float64))
    trainer = make(model, lambda m, b: (m(b[0]).sum(), 1.0), on_nan="continue", virtual_nodes=8)
    before = trainer.digest()
    with pytest.raises(NonFiniteError, match=r"'weight' took values up to 8e\+307.*float64"):
        train(trainer, data)
    assert trainer.digest() == before


def test_another_equally_large_set_of_tensors_takes_part_after_a_load(tmp_path: Any) -> None:
    """One checkpoint knows the grids of one half of the model, the Trainer those of the other."""

    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(6, 1), nn.Linear(6, 1)
            self.use = "one"

        def forward(self, inputs: Tensor) -> Tensor:
            return getattr(self, self.use)(inputs)  # type: ignore[no-any-return]

    def trainer(use: str) -> tuple[Halves, vf.Trainer]:
        vf.seed(0)
        model = Halves()
        model.use = use
        return model, make(model)

    _, saved = trainer("one")
    train(saved, regression(), steps=2)
    saved.save(tmp_path / "c.pt")
    model, other = trainer("other")
    train(other, regression(), steps=2)
    other.load(tmp_path / "c.pt")
    model.use = "one"
    assert train(other, regression(), epochs=2) == train(saved, regression(), epochs=2) != []
    assert other.digest() == saved.digest()


@pytest.mark.parametrize("reduction", ["exact", "fast"])
def test_parameters_may_be_renamed_added_and_removed_on_the_way(reduction: str) -> None:
    vf.seed(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = make(model, optimizer=optimizer, reduction=reduction)
    for epoch in trainer.epochs(4):
        if epoch == 1:
            prune.l1_unstructured(model[0], "weight", amount=0.5)
        if epoch == 2:
            prune.remove(model[0], "weight")
            model[2] = nn.Sequential(model[2], adapter := nn.Linear(1, 1))
            optimizer.add_param_group({"params": list(adapter.parameters())})
        if epoch == 3:
            model[2] = model[2][0]
        before = [p.detach().clone() for p in model.parameters()]
        for batch in trainer.batches(regression()):
            trainer.step(batch)
        assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in adapter.parameters())


@pytest.mark.parametrize("reduction", ["exact", "fast"])
def test_a_model_converted_on_the_way_gets_gradients_of_its_new_type(reduction: str) -> None:
    vf.seed(0)
    model = mlp()
    dtype = lambda: next(model.parameters()).dtype  # noqa: E731
    loss_fn = lambda m, b: mse_loss(m(b[0].to(dtype())), b[1].to(dtype()))  # noqa: E731
    trainer = make(model, loss_fn, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), reduction=reduction)
    for epoch in trainer.epochs(2):
        if epoch == 1:
            model.double()
        for batch in trainer.batches(regression()):
            trainer.step(batch)
            assert model[0].weight.grad.dtype == dtype()


def test_a_loss_may_unfreeze_what_it_needs_in_exact_mode() -> None:
    def digest(begin_frozen: bool, reduction: str = "exact") -> str:
        vf.seed(0)
        model = mlp()
        model[0].requires_grad_(not begin_frozen)

        def loss_fn(model: nn.Module, batch: list[Tensor]) -> Tensor:
            model[0].requires_grad_(True)  # type: ignore[index]
            return mse(model, batch)

        trainer = make(model, loss_fn, reduction=reduction)
        train(trainer, regression())
        return trainer.digest()

    assert digest(True) == digest(False)
    with pytest.raises(ConfigError, match=r"'0\.(weight|bias)' did not require a gradient"):
        digest(True, "fast")
