"""Optimizers that a script steps by itself, beside its Trainers: declared to the job, or refused by name."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from virtualflow.errors import HiddenStateError

Optimizer = torch.optim.Optimizer

_declared: weakref.WeakSet[Optimizer] = weakref.WeakSet()
_stepping: list[Optimizer] = []  # one within another: a wrapper steps the optimizer that it wraps
_training = False
_watching = False


def declare(items: Iterable[Any]) -> None:
    """These belong to a Trainer: its own optimizer, and those in its ``state=``."""
    global _watching
    for item in items:
        if isinstance(item, Optimizer):
            _declared.add(item)
            _declared.update(inner for inner in vars(item).values() if isinstance(inner, Optimizer))  # of a wrapper
    if not _watching:
        register_optimizer_step_pre_hook(_before)
        register_optimizer_step_post_hook(_after)
        _watching = True


def watch(*, training: bool) -> None:
    """A Trainer's loop is running, or is not."""
    global _training
    _training = training
    _stepping.clear()


def _before(optimizer: Optimizer, *_: Any) -> None:
    if _training and not _stepping and optimizer not in _declared:
        type_name = type(optimizer).__name__
        raise HiddenStateError(
            f"the script steps an optimizer ({type_name}) that no Trainer knows of. A worker that joins, and a job "
            "that resumes, would continue without its state. Put it, and the module that it trains, into the job: "
            "vf.Trainer(..., state=[module, optimizer])."
        )
    _stepping.append(optimizer)


def _after(*_: Any) -> None:
    if _stepping:
        _stepping.pop()
