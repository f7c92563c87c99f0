"""Several models, optimizers and losses in one Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

import virtualflow as vf
from tests.train.small import make, mlp, mse, regression, train
from virtualflow.errors import ConfigError
from virtualflow.events import StepDone, StepTotal, read_events

DATA = regression()


def networks() -> dict[str, nn.Module]:
    vf.seed(0)
    generator = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6))
    critic = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
    return {"g": generator, "d": critic}


def d_loss(models: Any, batch: list[Tensor]) -> tuple[Tensor, dict[str, Any]]:
    real = models["d"](batch[0])
    with torch.no_grad():
        fake = models["g"](torch.randn(len(batch[0]), 3))
    judged = models["d"](fake)
    loss = bce(real, torch.ones_like(real)) + bce(judged, torch.zeros_like(judged))
    return loss, {"fooled": ((judged > 0).sum(), len(judged))}


def g_loss(models: Any, batch: list[Tensor]) -> Tensor:
    judged = models["d"](models["g"](torch.randn(len(batch[0]), 3)))
    return bce(judged, torch.ones_like(judged))


def gan(models: Any = None, **options: Any) -> vf.Trainer:
    models = models or networks()
    phases = {
        "d": (torch.optim.Adam(models["d"].parameters(), lr=1e-2), d_loss),
        "g": (torch.optim.Adam(models["g"].parameters(), lr=1e-2), g_loss),
    }
    return vf.Trainer(models, phases, batch_size=8, virtual_nodes=4, seed=0, **options)


def played(trainer: vf.Trainer, epochs: int = 2, saved: Path | None = None) -> list[tuple[float, float]]:
    losses = []
    for _ in trainer.epochs(epochs):
        for batch in trainer.batches(DATA):
            losses.append((trainer.step(batch, "d"), trainer.step(batch, "g")))
            if saved is not None and len(losses) == 3:
                trainer.save(saved)
    return losses


@pytest.mark.parametrize(("every", "steps"), [(1, 20), (2, 16)])
def test_progress_counts_the_phases_of_each_batch(every: int, steps: int) -> None:
    """Twice as many steps as batches are no 200 %."""
    trainer, total, shown = gan(), StepTotal(), []
    for _ in trainer.epochs(2):
        for number, batch in enumerate(trainer.batches(DATA)):
            trainer.step(batch, "d")
            if number % every == 0:
                trainer.step(batch, "g")
    assert trainer.events_path is not None
    for event in read_events(trainer.events_path):
        total.add(event)
        if isinstance(event, StepDone):
            shown.append((event.step + 1, total.steps))
    assert all(known is not None and step <= known for step, known in shown)
    assert shown[-1] == (steps, steps)
    if every == 1:
        assert {known for _, known in shown[1:]} == {20}


def test_phases_take_turns_and_each_updates_its_own_parameters() -> None:
    models = networks()
    trainer = gan(models)
    before = {name: [p.detach().clone() for p in model.parameters()] for name, model in models.items()}
    for _ in trainer.epochs(1):
        for batch in trainer.batches(DATA):
            loss = trainer.step(batch, "d")
            assert 0 <= loss.metrics["fooled"] <= 1
            assert all(map(torch.equal, before["g"], models["g"].parameters()))
            assert not all(map(torch.equal, before["d"], models["d"].parameters()))
            trainer.step(batch, "g")
            assert not all(map(torch.equal, before["g"], models["g"].parameters()))
            break
    assert all(parameter.requires_grad for model in models.values() for parameter in model.parameters())


def test_a_discriminator_that_runs_in_the_generators_loss_keeps_its_statistics() -> None:
    models = networks()
    trainer = gan(models)
    for _ in trainer.epochs(1):
        for batch in trainer.batches(DATA):
            trainer.step(batch, "d")
            running = models["d"][1].running_mean.clone()  # type: ignore[index]
            trainer.step(batch, "g")
            assert not torch.equal(running, models["d"][1].running_mean)  # type: ignore[index]
            break


def test_a_resumed_job_goes_on_in_its_phases(tmp_path: Path) -> None:
    whole, half = gan(), gan()
    losses = played(whole)
    played(half, saved=tmp_path / "job.pt")
    resumed = gan()
    resumed.load(tmp_path / "job.pt")
    assert played(resumed) == losses[3:]
    assert resumed.digest() == whole.digest()
    steps = [event for event in read_events(resumed.events_path) if isinstance(event, StepDone)]
    assert [step.phase for step in steps[:4]] == ["d", "g", "d", "g"]


def test_phases_equal_a_plain_loop_up_to_rounding() -> None:
    models = networks()
    plain = networks()
    for model in (*models.values(), *plain.values()):
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0

    def d(both: Any, batch: list[Tensor]) -> Tensor:
        return (both["d"](batch[0]) - both["d"](both["g"](batch[0][:, :3])).detach()).square().mean()

    def g(both: Any, batch: list[Tensor]) -> Tensor:
        result: Tensor = both["d"](both["g"](batch[0][:, :3])).mean()
        return result

    optimizers = {name: torch.optim.SGD(models[name].parameters(), lr=0.1) for name in ("d", "g")}
    trainer = vf.Trainer(
        models,
        {"d": (optimizers["d"], d), "g": (optimizers["g"], g)},
        batch_size=8,
        virtual_nodes=1,
        seed=0,
        sampler=lambda _: range(8),
    )
    for _ in trainer.epochs(1):
        for batch in trainer.batches(DATA):
            trainer.step(batch, "d")
            trainer.step(batch, "g")
    first = [tensor[:8] for tensor in DATA.tensors]
    for name, loss_fn in (("d", d), ("g", g)):
        optimizer = torch.optim.SGD(plain[name].parameters(), lr=0.1)
        loss_fn(plain, first).backward()
        optimizer.step()
        for model in plain.values():
            model.zero_grad()
    for name, model in plain.items():
        for mine, theirs in zip(models[name].parameters(), model.parameters(), strict=True):
            assert torch.allclose(mine, theirs, atol=1e-5)


def test_several_optimizers_share_one_model(tmp_path: Path) -> None:
    def two() -> vf.Trainer:
        vf.seed(0)
        model = mlp()
        matrices = [p for p in model.parameters() if p.dim() > 1]
        vectors = [p for p in model.parameters() if p.dim() < 2]
        optimizers = [torch.optim.SGD(matrices, lr=0.1, momentum=0.9), torch.optim.AdamW(vectors, lr=0.01)]
        return make(model, optimizer=optimizers)

    whole, half = two(), two()
    train(whole, DATA, epochs=2)
    for _ in half.epochs(2):
        for batch in half.batches(DATA):
            half.step(batch)
            if half.global_step == 3:
                half.save(tmp_path / "job.pt")
    resumed = two()
    resumed.load(tmp_path / "job.pt")
    train(resumed, DATA, epochs=2)
    assert resumed.digest() == half.digest() == whole.digest()


def test_one_optimizer_in_a_list_is_one_optimizer() -> None:
    one, listed = make(), None
    vf.seed(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    listed = make(model, optimizer=[optimizer])
    assert train(one, DATA) == train(listed, DATA)
    assert one.digest() == listed.digest()


def test_gradients_leave_the_update_to_the_caller() -> None:
    stepped = make()
    train(stepped, DATA)
    vf.seed(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    by_hand = make(model, optimizer=optimizer)
    for _ in by_hand.epochs(1):
        for batch in by_hand.batches(DATA):
            by_hand.gradients(batch)
            optimizer.step()
    assert by_hand.digest() == stepped.digest()


def test_a_second_pass_in_a_step_as_sam_makes_it() -> None:
    def sam() -> str:
        vf.seed(0)
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = make(model, optimizer=optimizer)
        for _ in trainer.epochs(2):
            for batch in trainer.batches(DATA):
                trainer.gradients(batch)
                with torch.no_grad():
                    gradients = [p.grad for p in model.parameters() if p.grad is not None]
                    shift = [0.05 * g / (torch.nn.utils.get_total_norm(gradients) + 1e-12) for g in gradients]
                    torch._foreach_add_(list(model.parameters()), shift)
                trainer.gradients(batch)
                with torch.no_grad():
                    torch._foreach_sub_(list(model.parameters()), shift)
                optimizer.step()
        return trainer.digest()

    assert sam() == sam()


def test_gradients_can_be_changed_before_the_update() -> None:
    seen: list[float] = []

    def halve(model: nn.Module) -> None:
        seen.append(1.0)
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)

    vf.seed(0)
    halved_model = mlp()
    halved = make(halved_model, optimizer=torch.optim.SGD(halved_model.parameters(), lr=0.2), on_gradients=halve)
    vf.seed(0)
    model = mlp()
    plain = make(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    train(halved, DATA)
    train(plain, DATA)
    assert len(seen) == 5
    for mine, theirs in zip(halved_model.parameters(), model.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6)


def test_a_backward_of_another_library_is_used() -> None:
    called: list[int] = []

    def backward(loss: Tensor) -> None:
        called.append(1)
        loss.backward()

    own, plain = make(backward=backward), make()
    train(own, DATA)
    train(plain, DATA)
    assert called
    assert own.digest() == plain.digest()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((mlp(), {}), "no phase at all"),
        ((mlp(), {"d": 3}), r"the phase 'd' is a int, expected \(optimizer, loss_fn\)"),
        ((mlp(), {"d": (3, mse)}), "the phase 'd' got a int as its optimizer"),
        ((mlp(), {"d": (3, mse)}, mse), "leave the third argument out"),
        ((3, None, mse), "got a int as its model"),
        ((mlp(), None, mse), "got a NoneType as its optimizer"),
        ((mlp(), []), "needs a loss_fn"),
    ],
)
def test_what_is_no_phase_is_refused(arguments: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        vf.Trainer(*arguments, batch_size=8, virtual_nodes=4)


def test_two_optimizers_of_a_step_share_no_parameter() -> None:
    model = mlp()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2)]
    with pytest.raises(ConfigError, match="two optimizers of the Trainer hold the same parameter"):
        make(model, optimizer=optimizers)


def test_a_step_names_its_phase() -> None:
    trainer = gan()
    for _ in trainer.epochs(1):
        for batch in trainer.batches(DATA):
            with pytest.raises(ConfigError, match="expected one of 'd', 'g'"):
                trainer.step(batch)
            break
    plain = make()
    for _ in plain.epochs(1):
        for batch in plain.batches(DATA):
            with pytest.raises(ConfigError, match="this Trainer has none"):
                plain.step(batch, "d")
            break
