"""The committed state: taken from one Trainer, sent, and put into another, whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from tests.train.small import mlp, mse, regression
from virtualflow.core import faults
from virtualflow.errors import CheckpointError, PeerLostError
from virtualflow.testing import ThreadGroup, run_together
from virtualflow.train import committed
from virtualflow.train.buffers import Buffers
from virtualflow.train.committed import Live
from virtualflow.train.exact_reduction import ExactReduction
from virtualflow.train.position import Position
from virtualflow.train.samples import Samples
from virtualflow.train.settings import Settings
from virtualflow.train.state import Parts, digest, named_parameters, tensors_in
from virtualflow.train.step_metrics import MetricNames
from virtualflow.train.variables import Variables

pytestmark = pytest.mark.on_cuda_too
PLAIN = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def live(
    model: nn.Module,
    kind: Any = PLAIN,
    state: tuple[Any, ...] = (),
    scaler: torch.amp.GradScaler | None = None,
) -> Live:
    """What holds the state of a job that trains *model*, as a Trainer makes it."""
    parts = Parts(model.to(DEVICE))
    optimizers, buffers = (kind(model.parameters()),), Buffers(parts)
    return Live(
        parts,
        optimizers,
        {"": ExactReduction(named_parameters(model), buffers, 4)},
        buffers,
        Settings(parts, optimizers, state),
        state,
        scaler,
        Samples(),
        Variables(parts, optimizers),
        MetricNames(),
    )


def update(state: Live) -> None:
    state.optimizers[0].zero_grad()
    inputs, targets = (tensor.to(DEVICE) for tensor in regression().tensors)
    mse(state.parts.model, [inputs, targets]).backward()
    state.optimizers[0].step()


def digest_of(state: Live) -> str:
    return digest(state.parts, state.optimizers)


def test_what_was_taken_makes_another_job_equal() -> None:
    one, other = live(mlp()), live(mlp())
    update(one)
    assert digest_of(other) != digest_of(one)
    position = Position(epoch=2, step=1, global_step=3, chain="beef")
    assert committed.put(other, committed.take(one, position)) == position
    assert digest_of(other) == digest_of(one)


def test_the_state_of_another_model_is_refused_and_changes_nothing() -> None:
    mine = live(mlp())
    saved = committed.take(live(nn.Linear(6, 1)), Position())
    before = digest_of(mine)
    with pytest.raises(CheckpointError, match="the checkpoint is of another model"):
        committed.put(mine, saved)
    assert digest_of(mine) == before


def test_a_table_that_has_grown_on_a_worker_of_another_type_comes_to_this_one_s_device() -> None:
    model = mlp()
    model.register_buffer("table", torch.zeros(1))
    mine = live(model)
    saved = committed.take(mine, Position())
    saved["buffers"]["table"], saved["form of buffers"]["own form"] = torch.arange(5.0), {"table": True}
    committed.put(mine, saved)
    assert (model.table.device.type, model.table.tolist()) == (DEVICE, [0.0, 1.0, 2.0, 3.0, 4.0])


def test_what_is_sent_arrives_with_its_types_and_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committed, "SMALL_BYTES", 64)  # so that some travel alone and some together
    sent: dict[str, Any] = {
        "large": torch.arange(48.0).reshape(1, 3, 4, 4).to(memory_format=torch.channels_last),
        "small": [torch.tensor(1.5), torch.tensor([True, False]), torch.empty(0)],
        "plain": {"step": 7, "name": "x", "nested": (None, 2.5)},
    }
    sender, receiver = ThreadGroup.of(2)
    here = torch.device("cpu")
    _, arrived = run_together(partial(committed.send, sent, sender), partial(committed.receive, receiver, here))
    assert torch.equal(arrived["large"], sent["large"])
    assert arrived["large"].stride() == sent["large"].stride()
    for mine, theirs in zip(sent["small"], arrived["small"], strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        assert torch.equal(mine, theirs)
    assert arrived["plain"] == sent["plain"]


def test_what_is_sent_comes_to_the_device_that_it_was_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adam's steps are the host's beside moments on the device; a generator and a scale have states of their own."""
    monkeypatch.setattr(committed, "SMALL_BYTES", 64)

    def begun() -> tuple[Live, torch.Generator, torch.amp.GradScaler]:
        drawn, scaler = torch.Generator(device=DEVICE), torch.amp.GradScaler(DEVICE, init_scale=8.0)
        return live(mlp(), torch.optim.Adam, (drawn,), scaler), drawn, scaler

    (one, drawn, scale), (other, arrived, scale_there) = begun(), begun()
    update(one)
    drawn.manual_seed(5)
    torch.rand(3, generator=drawn, device=DEVICE)
    scale.scale(torch.ones((), device=DEVICE))  # it exists from now on
    scale.update(4.0)
    sent = committed.take(one, Position())
    sender, receiver = ThreadGroup.of(2)
    _, contents = run_together(
        partial(committed.send, sent, sender), partial(committed.receive, receiver, torch.device(DEVICE))
    )
    assert [each.device.type for each in tensors_in(contents)] == [each.device.type for each in tensors_in(sent)]
    committed.put(other, contents)
    update(one)
    update(other)
    assert digest_of(other) == digest_of(one)
    for held in other.optimizers[0].state.values():
        assert [held[key].device.type for key in ("step", "exp_avg", "exp_avg_sq")] == ["cpu", DEVICE, DEVICE]
    assert scale_there.get_scale() == 4.0
    draws = [torch.rand(3, generator=each, device=DEVICE).tolist() for each in (drawn, arrived)]
    assert draws[0] == draws[1]


def test_what_arrives_damaged_is_sent_again() -> None:
    sent = {"weight": torch.arange(40.0), "step": 3}
    sender, receiver = ThreadGroup.of(2)
    left = [4]

    def damage(point: str, tensors: Sequence[Any]) -> None:
        if point == "state transfers" and len(tensors[0]) == 160 and left:
            tensors[0][17] ^= left.pop()

    faults.arm_damage(damage)
    try:
        again, arrived = run_together(
            partial(committed.send, sent, sender), partial(committed.receive, receiver, torch.device("cpu"))
        )
    finally:
        faults.arm_damage(None)
    assert again == 1
    assert torch.equal(arrived["weight"], sent["weight"])


def test_what_arrives_damaged_each_time_is_adopted_by_nobody() -> None:
    sender, receiver = ThreadGroup.of(2)
    faults.arm_damage(lambda point, tensors: tensors[0].add_(1))
    try:
        with pytest.raises(PeerLostError, match="damaged 3 times"):
            run_together(
                partial(committed.send, {"a": 1}, sender), partial(committed.receive, receiver, torch.device("cpu"))
            )
    finally:
        faults.arm_damage(None)
