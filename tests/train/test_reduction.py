"""The reduction alone: gradients in, sums out, on workers that are threads of this process."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from virtualflow.errors import ConfigError, LossError, PeerLostError
from virtualflow.testing import ThreadGroup, run_together
from virtualflow.train.buffers import Buffers
from virtualflow.train.exact_reduction import ExactReduction
from virtualflow.train.fast_reduction import FastReduction
from virtualflow.train.readback import Readback
from virtualflow.train.reduction import Measured, Reduction
from virtualflow.train.state import Parts, named_parameters

Gradient = Callable[[int], Tensor | None]  # that a virtual node has for the weight
MAPPINGS = [[[0, 1, 2, 3, 4, 5]], [[5, 3, 1], [4, 2, 0]], [[0], [1, 2, 3, 4], [5]], [[], [5, 4, 3, 2, 1, 0]]]
NODES = 6
both_kinds = pytest.mark.parametrize("kind", [ExactReduction, FastReduction])


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(7))
        self.unused = nn.Parameter(torch.zeros(2))
        self.register_buffer("average", torch.zeros(1))
        self.average: Tensor


@dataclass(frozen=True)
class Reduced:
    weight: Tensor | None
    unused: Tensor | None
    average: float
    norm: float | None
    attempts: int


def reduction_of(model: nn.Module, kind: type[Reduction] = ExactReduction) -> Reduction:
    return kind(named_parameters(model), Buffers(Parts(model)), NODES)


def measured(reduction: Reduction) -> Measured:
    readback = Readback()
    later = reduction.measure(readback)
    readback.read()
    return later()


def reduced(kind: type[Reduction], gradient: Gradient, nodes: Sequence[int], group: ThreadGroup | None) -> Reduced:
    """What one worker has at the end of a step with one example a virtual node and a weight of 3."""
    model = Model()
    buffers = Buffers(Parts(model))
    reduction = kind(named_parameters(model), buffers, NODES)
    buffers.hold()
    for attempt in range(1, 5):
        reduction.begin(group)
        for node in nodes:
            buffers.restore()
            reduction.begin_node(last=node == nodes[-1])
            reduction.begin_backward()
            if (own := gradient(node)) is not None:
                (model.weight * own).sum().backward()
            model.average += node
            buffers.compare()
            buffers.end_node(node)
            reduction.end_node(1)
        buffers.restore()
        reduction.flush()
        peaks = torch.tensor(measured(reduction).peaks)
        if group is not None:
            group.max(peaks)
        if reduction.accept(peaks.tolist()):
            squares = reduction.divide(3.0)
            reduction.finish(peaks.tolist(), NODES)
            norm = reduction.norm(float(squares)) if squares is not None else None
            return Reduced(model.weight.grad, model.unused.grad, float(model.average), norm, attempt)
    raise AssertionError("never accepted")


def on_workers(kind: type[Reduction], gradient: Gradient, mapping: Sequence[Sequence[int]]) -> list[Reduced]:
    if len(mapping) == 1:
        return [reduced(kind, gradient, mapping[0], None)]
    groups = ThreadGroup.of(len(mapping))
    return run_together(*(partial(reduced, kind, gradient, *each) for each in zip(mapping, groups, strict=True)))


def awkward(node: int) -> Tensor:
    """Addends whose plain sum depends on their order."""
    generator = torch.Generator().manual_seed(node)
    return torch.randn(7, generator=generator) * 10.0 ** (5 * (node % 3) - 5) * (-1) ** node


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_exact_sums_have_the_same_bits_for_every_mapping(mapping: list[list[int]]) -> None:
    (expected,) = on_workers(ExactReduction, awkward, MAPPINGS[0])
    assert expected.weight is not None
    for worker in on_workers(ExactReduction, awkward, mapping):
        assert worker.weight is not None
        assert worker.weight.tolist() == expected.weight.tolist()
        assert (worker.norm, worker.average) == (expected.norm, expected.average)


@both_kinds
@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_sum_is_divided_once_by_the_weight(kind: type[Reduction], mapping: list[list[int]]) -> None:
    true = [math.fsum(float(awkward(node)[place]) for node in range(NODES)) / 3.0 for place in range(7)]
    for worker in on_workers(kind, awkward, mapping):
        assert worker.weight is not None
        assert worker.weight.tolist() == pytest.approx(true, rel=1e-5, abs=1e-3)
        assert worker.average == 2.5  # the mean of 0 to 5


def test_exact_mode_replays_its_first_step_once_to_place_its_grids() -> None:
    assert [each.attempts for each in on_workers(ExactReduction, awkward, MAPPINGS[1])] == [2, 2]


@both_kinds
def test_a_gradient_is_none_on_all_workers_or_on_none(kind: type[Reduction]) -> None:
    for worker in on_workers(kind, lambda node: torch.ones(7) if node == 5 else None, MAPPINGS[1]):
        assert worker.unused is None
        assert worker.weight is not None
        assert worker.weight.tolist() == pytest.approx([1 / 3] * 7)


@both_kinds
def test_a_value_that_is_not_finite_is_named(kind: type[Reduction]) -> None:
    model = Model()
    reduction = reduction_of(model, kind)
    reduction.begin(None)
    reduction.begin_node(last=True)
    reduction.begin_backward()
    (model.weight.sum() + (model.unused * math.inf).sum()).backward()
    reduction.end_node(1)
    result = measured(reduction)
    if kind is ExactReduction:  # which knows of every virtual node's gradient, and not of the sum's alone
        assert [reduction.names[number - 1] for number in result.unclean] == ["unused"]
    else:
        assert reduction.not_finite(result.peaks) == "unused"


def backward_in_loss(model: Model, reduction: Reduction) -> None:
    model.weight.sum().backward()


def twice(model: Model, reduction: Reduction) -> None:
    reduction.begin_backward()
    loss = model.weight.square().sum()
    loss.backward(retain_graph=True)
    loss.backward()


def sparse(model: Model, reduction: Reduction) -> None:
    reduction.begin_backward()
    table = nn.Embedding(3, 2, sparse=True)
    reduction.adopt({"table": table.weight})
    table(torch.tensor([1])).sum().backward()


@pytest.mark.parametrize(
    ("deed", "error", "reason"),
    [
        (backward_in_loss, LossError, r"loss_fn has called backward\(\), which gave 'weight' a gradient"),
        (twice, ConfigError, "the gradient of 'weight' arrived twice in one backward"),
        (sparse, ConfigError, "the gradient of 'table' is sparse"),
    ],
)
@both_kinds
def test_what_can_not_be_summed_is_refused_by_name(
    kind: type[Reduction], deed: Callable[[Model, Reduction], None], error: type[Exception], reason: str
) -> None:
    model = Model()
    reduction = reduction_of(model, kind)
    reduction.begin(None)
    reduction.begin_node(last=True)
    with pytest.raises(error, match=reason):
        deed(model, reduction)


def test_fast_mode_refuses_what_is_unfrozen_inside_of_a_step() -> None:
    model = Model()
    model.weight.requires_grad_(False)
    reduction = reduction_of(model, FastReduction)
    reduction.begin(None)
    reduction.begin_node(last=True)
    reduction.begin_backward()
    with pytest.raises(ConfigError, match="'weight' did not require a gradient when the step began"):
        model.weight.requires_grad_(True).sum().backward()


@both_kinds
def test_a_backward_of_the_users_own_between_steps_is_left_alone(kind: type[Reduction]) -> None:
    model = Model()
    reduction = reduction_of(model, kind)
    model.weight.sum().backward()
    assert model.weight.grad is not None
    reduction.begin(None)
    assert model.weight.grad is None


@both_kinds
def test_a_parameter_that_the_model_has_lost_is_no_longer_taken_in(kind: type[Reduction]) -> None:
    model = Model()
    reduction = reduction_of(model, kind)
    before, model.weight.grad = reduction.signature, torch.ones(7)
    reduction.adopt({"unused": model.unused})
    assert model.weight.grad is None
    assert reduction.names == ["unused", "average"]
    assert reduction.signature != before
    reduction.begin(None)
    reduction.begin_node(last=True)
    reduction.begin_backward()
    model.weight.sum().backward()
    reduction.end_node(1)
    assert measured(reduction).peaks[0] == -1


@both_kinds
def test_a_witness_sees_every_gradient_by_name(kind: type[Reduction]) -> None:
    model, seen = Model(), []
    reduction = reduction_of(model, kind)
    reduction.witness = lambda name, gradient: seen.append((name, gradient.sum().item()))
    reduction.begin(None)
    reduction.begin_node(last=True)
    reduction.begin_backward()
    (2 * model.weight.sum() + model.unused.sum()).backward()
    assert sorted(seen) == [("unused", 2.0), ("weight", 14.0)]


@both_kinds
def test_a_worker_that_dies_is_an_error_to_the_others(kind: type[Reduction]) -> None:
    alive, dead = ThreadGroup.of(2)
    dead.lose()
    with pytest.raises(PeerLostError):
        reduced(kind, awkward, MAPPINGS[1][0], alive)


def test_a_grid_is_state_that_another_worker_can_go_on_with() -> None:
    reductions = [reduction_of(Model()) for _ in range(2)]
    reductions[0].grids = {"gradients": {"weight": 5}, "buffers": {"average": -3}}
    reductions[1].grids = reductions[0].grids
    assert reductions[1].grids == reductions[0].grids
    assert reductions[0].grids["gradients"]["weight"] == 5
