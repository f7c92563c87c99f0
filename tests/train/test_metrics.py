"""Numbers besides the loss: by name, over the global batch, equal on every mapping."""

from __future__ import annotations

import math
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import virtualflow as vf
from tests.train.several import peers_of
from tests.train.small import classes, cross, make, mlp, mse, regression, train
from tests.train.test_step import NODES, batch_of, worker
from virtualflow.errors import LossError
from virtualflow.events import StepDone, read_events
from virtualflow.testing import run_together
from virtualflow.train.fast_reduction import FastReduction


def measured(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Any]]:
    errors = (model(batch[0]) - batch[1]).detach().abs()
    return mse(model, batch), {"error": (errors.sum(), errors.numel()), "seen": len(errors), "node": float(batch[2])}


def only_some(model: nn.Module, batch: Any) -> Any:
    """Which virtual nodes report what depends on the node."""
    return mse(model, batch), ({"odd": 1} if batch[2] % 2 else {"even": (batch[2], 2)})


def results(one: Any, sizes: tuple[int, ...]) -> list[tuple[float, dict[str, float], int]]:
    made = [one.run(batch_of(step, sizes), step) for step in range(3)]
    return [(result.loss, result.metrics, result.attempts) for result in made]


@pytest.mark.parametrize("reduction", [None, FastReduction], ids=["exact", "fast"])
@pytest.mark.parametrize("loss_fn", [measured, only_some])
@pytest.mark.parametrize("sizes", [(3, 2, 3, 2), (4, 1, 0, 0)])
def test_metrics_are_the_same_on_any_number_of_workers(reduction: Any, loss_fn: Any, sizes: tuple[int, ...]) -> None:
    options = {} if reduction is None else {"reduction": reduction}
    alone = results(worker(loss_fn=loss_fn, **options), sizes)
    for devices in (2, 3, NODES):
        workers = [worker(peers, loss_fn, **options) for peers in peers_of(devices)]
        result = run_together(*(partial(results, each, sizes) for each in workers))
        steps = 3 if reduction is None else 1  # fast ones are equal up to rounding after that
        assert [[metrics for _, metrics, _ in one][:steps] for one in result] == [
            [m for _, m, _ in alone][:steps]
        ] * devices


def test_a_mean_is_over_the_global_batch_and_a_number_is_summed() -> None:
    one = worker(loss_fn=measured)
    before = [parameter.detach().clone() for parameter in one.model.parameters()]
    result = one.run(batch_of(), 0)
    assert result.metrics["seen"] == 10
    assert result.metrics["node"] == 0 + 1 + 2 + 3
    plain = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))
    with torch.no_grad():
        for mine, theirs in zip(plain.parameters(), before, strict=True):
            mine.copy_(theirs)
        data = regression(64).tensors
        expected = (plain(data[0][:10]) - data[1][:10]).abs().mean()
    assert result.metrics["error"] == pytest.approx(float(expected), rel=1e-6)


def test_a_new_name_costs_one_replay_and_no_more() -> None:
    def later(model: nn.Module, batch: Any) -> Any:
        return mse(model, batch), ({"now": 1} if step >= 2 else {})

    one = worker(loss_fn=later)
    attempts = []
    for step in range(5):
        attempts.append(one.run(batch_of(step), step).attempts)
    assert attempts == [2, 1, 2, 1, 1]


def test_metrics_do_not_change_a_bit() -> None:
    with_them = make(loss_fn=lambda model, batch: (mse(model, batch), {"n": 1}))
    without = make()
    train(with_them, regression(), epochs=2)
    train(without, regression(), epochs=2)
    assert with_them.digest() == without.digest()


def test_step_returns_a_float_that_knows_its_metrics() -> None:
    def loss_fn(model: nn.Module, batch: list[Tensor]) -> vf.Loss:
        right = (model(batch[0]).argmax(1) == batch[1]).sum()
        return vf.Loss(cross(model, batch), metrics={"accuracy": (right, len(batch[1]))})

    vf.seed(0)
    trainer = make(mlp(out=3), loss_fn)
    losses = train(trainer, classes(), epochs=12)
    last: Any = losses[-1]
    assert isinstance(last, float)
    assert 0.5 < last.metrics["accuracy"] <= 1
    assert pickle.loads(pickle.dumps(last)).metrics == last.metrics
    events = [event for event in read_events(trainer.events_path) if isinstance(event, StepDone)]
    assert [event.metrics for event in events] == [loss.metrics for loss in losses]  # type: ignore[attr-defined]


def test_a_loss_with_a_weight_has_metrics_too() -> None:
    def weighed(model: nn.Module, batch: list[Tensor]) -> vf.Loss:
        errors = (model(batch[0]) - batch[1]).square()
        return vf.Loss(errors.sum(), weight=len(errors), metrics={"examples": len(errors)})

    def pair(model: nn.Module, batch: list[Tensor]) -> tuple[Tensor, int]:
        errors = (model(batch[0]) - batch[1]).square()
        return errors.sum(), len(errors)

    one, other = make(loss_fn=weighed), make(loss_fn=pair)
    losses = train(one, regression())
    assert losses == train(other, regression())
    assert losses[0].metrics == {"examples": 8}  # type: ignore[attr-defined]


def test_a_resumed_job_knows_the_names(tmp_path: Path) -> None:
    def counted(model: nn.Module, batch: list[Tensor]) -> Any:
        return mse(model, batch), {"n": len(batch[0])}

    first = make(loss_fn=counted, reduction="fast")
    train(first, regression(), steps=3)
    first.save(tmp_path / "job.pt")
    second = make(loss_fn=counted, reduction="fast")
    second.load(tmp_path / "job.pt")
    train(second, regression(), epochs=2)
    steps = [event for event in read_events(second.events_path) if isinstance(event, StepDone)]
    assert [step.attempts for step in steps] == [1] * len(steps)
    assert {step.metrics["n"] for step in steps} == {8.0}


def test_a_loss_that_step_returned_can_be_kept_in_the_job(tmp_path: Path) -> None:
    progress = vf.State(best=math.inf)
    trainer = make(state=[progress])
    for _ in trainer.epochs(1):
        for batch in trainer.batches(regression()):
            progress.best = min(progress.best, trainer.step(batch))
    trainer.save(tmp_path / "job.pt")
    again = vf.State(best=math.inf)
    make(state=[again]).load(tmp_path / "job.pt")
    assert again.best == progress.best


def refused(returned: Any) -> Any:
    return lambda model, batch: (mse(model, batch), returned)


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        ({"a": (1, 2, 3)}, "tuple of 3 values for the metric 'a'"),
        ({"a": "high"}, "a str for the metric 'a'"),
        ({"a": torch.ones(3)}, r"tensor of shape \(3,\) for the metric 'a'"),
        ({"a": (1, -1)}, "weight -1.0 for the metric 'a'"),
        ({"a": (1, math.nan)}, "weight nan for the metric 'a'"),
        ({3: 1}, "under the name 3"),
        ({f"m{i}": i for i in range(300)}, "at most 256"),
    ],
)
def test_what_is_no_metric_is_refused_by_name(metrics: Any, reason: str) -> None:
    with pytest.raises(LossError, match=reason):
        train(make(loss_fn=refused(metrics)), regression())


def test_a_name_is_a_mean_or_a_sum() -> None:
    def both(model: nn.Module, batch: list[Tensor]) -> Any:
        value: Any = 1 if batch[0].sum() > 0 else (1, 1)
        return mse(model, batch), {"a": value}

    with pytest.raises(LossError, match="'a' once as a number and once as"):
        train(make(loss_fn=both), regression())


def test_a_loss_and_an_accuracy_are_not_taken_for_a_total_and_a_weight() -> None:
    def two_losses(model: nn.Module, batch: list[Tensor]) -> Any:
        return mse(model, batch), model(batch[0]).abs().mean()

    with pytest.raises(LossError, match=r"depends on the model.*by name"):
        train(make(loss_fn=two_losses), regression())

    def with_accuracy(model: nn.Module, batch: list[Tensor]) -> Any:
        return mse(model, batch), torch.tensor(0.5)

    with pytest.warns(UserWarning, match=r"weight 0.5 for 2 examples.*accuracy"):
        train(make(loss_fn=with_accuracy), regression(), steps=1)


def test_evaluations_have_names() -> None:
    from virtualflow.events import Evaluated

    def error(model: nn.Module, batch: list[Tensor]) -> tuple[Tensor, int]:
        return (model(batch[0]) - batch[1]).abs().sum(), len(batch[0])

    trainer = make()
    trainer.evaluate(regression(), error)
    trainer.evaluate(regression(), error, name="test error")
    names = [event.name for event in read_events(trainer.events_path) if isinstance(event, Evaluated)]
    assert names == ["error", "test error"]
