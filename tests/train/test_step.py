"""One step alone, without a Trainer: shards and workers are the test's, and workers are threads of this process."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.train.several import peers_of
from tests.train.small import mse, regression
from virtualflow.core.sharding import GlobalBatch
from virtualflow.errors import (
    CollectiveError,
    ConfigError,
    DeviceMemoryError,
    HiddenStateError,
    LossError,
    NonFiniteError,
)
from virtualflow.testing import run_together
from virtualflow.train.buffers import Buffers
from virtualflow.train.data import Request, Shard
from virtualflow.train.exact_reduction import ExactReduction
from virtualflow.train.fast_reduction import FastReduction
from virtualflow.train.pace import Pace
from virtualflow.train.peers import Peers
from virtualflow.train.reduction import Reduction
from virtualflow.train.solo import Solo
from virtualflow.train.state import Parts, named_parameters
from virtualflow.train.step import StepResult, StepRunner
from virtualflow.train.step_metrics import MetricNames
from virtualflow.train.step_settings import StepSettings

pytestmark = pytest.mark.on_cuda_too

DATA = regression(64).tensors
NODES = 4
LossFn = Callable[[nn.Module, Any], Any]


class Shards:
    """A feed without loading: the rows that were asked for, with the number of the virtual node."""

    def take(self, request: Request) -> Shard:
        rows = torch.as_tensor(np.asarray(request.indices))
        batch = [DATA[0][rows], DATA[1][rows], request.virtual_node]
        return Shard(batch, len(rows), int(rows.sum()))


class NothingBeside:
    """Stands for the search for state beside the model, which hooks every module of the process."""

    set_anew = frozenset[str]()

    @contextmanager
    def watched(self, step: int, node: int) -> Iterator[None]:
        yield

    def check(self, when: str) -> None: ...


class Net(nn.Sequential):
    def __init__(self, *more: nn.Module) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(6, 5), *more, nn.Tanh(), nn.Linear(5, 1))


@dataclass
class Worker:
    model: nn.Module
    run: Callable[[GlobalBatch, int], StepResult]

    def bits(self) -> list[list[float]]:
        return [tensor.double().flatten().tolist() for tensor in self.model.state_dict().values()]


def worker(
    peers: Peers | None = None,
    loss_fn: LossFn = mse,
    model: nn.Module | None = None,
    reduction: type[Reduction] = ExactReduction,
    **settings: Any,
) -> Worker:
    model = model or Net()
    parts = Parts(model)
    buffers = Buffers(parts)
    runner = StepRunner(
        parts,
        (torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),),
        reduction(named_parameters(model), buffers, NODES),
        buffers,
        StepSettings(loss_fn, 0, NODES, 1, **settings),
        None,
        peers or Peers(Solo()),
        None,
        Pace(),
        NothingBeside(),  # type: ignore[arg-type]
        MetricNames(),
    )
    return Worker(model, lambda batch, step: runner.run(batch, step, Shards()))  # type: ignore[arg-type]


def batch_of(step: int = 0, sizes: tuple[int, ...] = (3, 2, 3, 2)) -> GlobalBatch:
    ends = np.cumsum(sizes)
    return GlobalBatch(0, step, tuple(np.arange(end - size, end) + step for size, end in zip(sizes, ends, strict=True)))


def norm_of(one: Worker) -> float:
    gradients = [parameter.grad for parameter in one.model.parameters() if parameter.grad is not None]
    return float(torch.nn.utils.get_total_norm(gradients))


def trained(one: Worker, sizes: tuple[int, ...] = (3, 2, 3, 2)) -> tuple[list[StepResult], list[list[float]]]:
    return [one.run(batch_of(step, sizes), step) for step in range(3)], one.bits()


@pytest.mark.parametrize("devices", [2, 3, 4])
@pytest.mark.parametrize("sizes", [(3, 2, 3, 2), (4, 1, 0, 0)])
def test_any_number_of_workers_makes_the_same_steps_bit_by_bit(devices: int, sizes: tuple[int, ...]) -> None:
    alone = trained(worker(model=Net(nn.LayerNorm(5))), sizes)
    workers = [worker(peers, model=Net(nn.LayerNorm(5))) for peers in peers_of(devices)]
    assert run_together(*(partial(trained, each, sizes) for each in workers)) == [alone] * devices


def test_buffers_end_as_the_mean_over_virtual_nodes_on_every_worker() -> None:
    alone = trained(worker(model=Net(nn.BatchNorm1d(5))))
    workers = [worker(peers, model=Net(nn.BatchNorm1d(5))) for peers in peers_of(2)]
    assert run_together(*(partial(trained, each) for each in workers)) == [alone] * 2


def test_only_the_first_step_is_replayed() -> None:
    results, _ = trained(worker())
    assert [result.attempts for result in results] == [2, 1, 1]


def test_the_loss_is_the_mean_over_examples_and_the_update_that_of_plain_torch() -> None:
    one, plain = worker(reduction=FastReduction), Net()
    result = one.run(batch_of(), 0)
    loss = nn.functional.mse_loss(plain(DATA[0][:10]), DATA[1][:10])
    loss.backward()
    assert result.loss == pytest.approx(float(loss.detach()), rel=1e-6)
    for mine, theirs in zip(one.model.parameters(), plain.parameters(), strict=True):
        assert theirs.grad is not None
        torch.testing.assert_close(mine.detach(), theirs.detach() - 0.1 * theirs.grad)


@pytest.mark.parametrize("reduction", [ExactReduction, FastReduction])
def test_gradients_are_clipped_to_the_norm(reduction: type[Reduction]) -> None:
    one = worker(reduction=reduction, clip_grad_norm=1e-3)
    one.run(batch_of(), 0)
    assert norm_of(one) == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("reduction", [ExactReduction, FastReduction])
def test_on_mixed_device_types_the_clip_norm_is_the_leads(reduction: type[Reduction]) -> None:
    def rounds(model: nn.Module) -> None:  # as if the second device's gradient were twice as large
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(2.0)

    lead, second = peers_of(2)
    settings: dict[str, Any] = {"reduction": reduction, "clip_grad_norm": 1e-3, "mixed": True}
    workers = [
        worker(lead, on_gradients=lambda model: None, **settings),
        worker(second, on_gradients=rounds, **settings),
    ]
    run_together(*(partial(each.run, batch_of(), 0) for each in workers))
    assert [norm_of(each) for each in workers] == pytest.approx([1e-3, 2e-3], rel=1e-3)


class RoundsTheNorm(ExactReduction):
    def norm(self, squares: float) -> float:
        return 2 * super().norm(squares)


@pytest.mark.parametrize("mixed", [False, True])
def test_on_mixed_device_types_all_record_the_norm_of_the_lead(mixed: bool) -> None:
    lead, second = peers_of(2)
    workers = [worker(lead, mixed=mixed), worker(second, reduction=RoundsTheNorm, mixed=mixed)]
    one, other = run_together(*(partial(each.run, batch_of(), 0) for each in workers))
    assert (other.gradient_norm == one.gradient_norm) == mixed


def not_a_number(model: nn.Module, batch: Any) -> Tensor:
    return mse(model, batch) * (math.nan if batch[2] == 2 else 1.0)


def infinite_gradient(model: nn.Module, batch: Any) -> Tensor:
    return mse(model, batch) + (torch.sqrt(model[0].bias.sum() * 0).sum() if batch[2] == 1 else 0.0)


def no_weight(model: nn.Module, batch: Any) -> tuple[Tensor, float]:
    return mse(model, batch), 0.0


def two_kinds(model: nn.Module, batch: Any) -> Any:
    return mse(model, batch) if batch[2] else (mse(model, batch), 1.0)


def no_memory(model: nn.Module, batch: Any) -> Tensor:
    if batch[2] == 3:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
    return mse(model, batch)


def writes(model: nn.Module, batch: Any) -> Tensor:
    with torch.no_grad():
        model[0].weight.mul_(2.0)
    return mse(model, batch)


def own_backward(model: nn.Module, batch: Any) -> Tensor:
    mse(model, batch).backward()
    return mse(model, batch)


def lone_example(model: nn.Module, batch: Any) -> Tensor:
    raise ValueError("Expected more than 1 value per channel when training")


class Grows:
    """Another loss in every call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        self.calls += 1
        return mse(model, batch) * 1000.0**self.calls


REFUSED: list[tuple[LossFn, type[Exception], str]] = [
    (not_a_number, NonFiniteError, "in step 7, virtual node 2, the loss is nan"),
    (infinite_gradient, NonFiniteError, r"in step 7, virtual node 1, the gradient of '0.bias' has values that are not"),
    (no_weight, LossError, "the weights of step 7 add up to 0"),
    (two_kinds, LossError, "a mean for one of virtual nodes 0 and 1"),
    (no_memory, DeviceMemoryError, r"out of memory in step 7, virtual node 3 with 2 examples"),
    (writes, HiddenStateError, "0.weight"),
    (own_backward, LossError, r"loss_fn has called backward\(\)"),
    (Grows(), HiddenStateError, "step 7"),
]


@pytest.mark.parametrize(("loss_fn", "error", "reason"), REFUSED)
def test_a_step_that_can_not_be_made_is_refused_by_name_and_leaves_no_gradient(
    loss_fn: LossFn, error: type[Exception], reason: str
) -> None:
    one = worker(loss_fn=loss_fn)
    before = one.bits()
    with pytest.raises(error, match=reason):
        one.run(batch_of(), 7)
    assert all(parameter.grad is None for parameter in one.model.parameters())
    assert loss_fn is writes or one.bits() == before


def test_a_lone_example_that_batch_norm_refuses_gets_advice() -> None:
    with pytest.raises(ConfigError, match=r"virtual node 0 has one example only.*drop_last=True"):
        worker(loss_fn=lone_example).run(batch_of(0, (1, 1, 1, 1)), 7)


def test_all_workers_refuse_what_one_virtual_node_did() -> None:
    workers = [worker(peers, not_a_number) for peers in peers_of(2)]

    def refused(each: Worker) -> str:
        with pytest.raises(NonFiniteError) as error:
            each.run(batch_of(), 7)
        return str(error.value)

    one, other = run_together(*(partial(refused, each) for each in workers))
    assert one == other
    assert "virtual node 2" in one


def test_on_nan_continue_trains_on() -> None:
    one = worker(loss_fn=not_a_number, on_nan="continue")
    assert math.isnan(one.run(batch_of(), 7).loss)
    assert any(math.isnan(value) for tensor in one.bits() for value in tensor)


class Counter(nn.Module):
    """Counts in an integer buffer: the calls, or what the virtual node decides."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.count: Tensor
        self.by = 1

    def forward(self, x: Tensor) -> Tensor:
        self.count += self.by
        return x


@pytest.mark.parametrize("differs", [False, True])
def test_integer_buffers_must_agree_between_virtual_nodes(differs: bool) -> None:
    counter = Counter()

    def loss_fn(model: nn.Module, batch: Any) -> Tensor:
        counter.by = 1 + batch[2] if differs else 1
        return mse(model, batch)

    one = worker(loss_fn=loss_fn, model=Net(counter))
    if differs:
        with pytest.raises(HiddenStateError, match=r"virtual nodes 0 and 1 left different values in an integer buffer"):
            one.run(batch_of(), 7)
    else:
        one.run(batch_of(), 7)
        assert int(counter.count) == 1


def test_workers_at_different_batches_are_found_before_anything_is_reduced() -> None:
    one, other = (worker(peers) for peers in peers_of(2))
    with pytest.raises(CollectiveError):
        run_together(partial(one.run, batch_of(0), 3), partial(other.run, batch_of(1), 3))
    assert one.bits() == other.bits() == worker().bits()
