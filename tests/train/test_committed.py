"""The committed state: taken from one Trainer, sent, and put into another, whole or not at all."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from tests.train.small import make, mlp, regression, train
from virtualflow.errors import CheckpointError
from virtualflow.testing import ThreadGroup, run_together
from virtualflow.train import committed
from virtualflow.train.position import Position


def test_what_was_taken_makes_another_trainer_equal() -> None:
    one, other = make(), make(mlp())
    train(one, regression(), steps=3)
    position = committed.put(other._live, committed.take(one._live, one._loop.position))
    assert other.digest() == one.digest()
    assert position == one._loop.position
    assert position.global_step == 3


def test_the_state_of_another_model_is_refused_and_changes_nothing() -> None:
    trainer = make()
    saved = committed.take(make(nn.Linear(6, 1))._live, Position())
    before = trainer.digest()
    with pytest.raises(CheckpointError, match="the checkpoint is of another model"):
        committed.put(trainer._live, saved)
    assert trainer.digest() == before


def test_what_is_sent_arrives_with_its_types_and_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committed, "SMALL_BYTES", 64)  # so that some travel alone and some together
    sent: dict[str, Any] = {
        "large": torch.arange(48.0).reshape(1, 3, 4, 4).to(memory_format=torch.channels_last),
        "small": [torch.tensor(1.5), torch.tensor([True, False]), torch.empty(0)],
        "plain": {"step": 7, "name": "x", "nested": (None, 2.5)},
    }
    sender, receiver = ThreadGroup.of(2)
    _, arrived = run_together(partial(committed.send, sent, sender), partial(committed.receive, receiver))
    assert torch.equal(arrived["large"], sent["large"])
    assert arrived["large"].stride() == sent["large"].stride()
    for mine, theirs in zip(sent["small"], arrived["small"], strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        assert torch.equal(mine, theirs)
    assert arrived["plain"] == sent["plain"]
