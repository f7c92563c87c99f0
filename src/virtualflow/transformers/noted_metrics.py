"""What trainers derived from transformers' note in ``compute_loss``, as TRL's do: put together over the micro-batches.

They keep lists by name in ``_metrics["train"]`` and ``_metrics["eval"]``, and average them when they log.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TOKENS = "num_tokens"  # so far: a sum, and no mean
_TOTAL = "_total_train_tokens"


@contextmanager
def noted(trainer: Any, mode: str) -> Iterator[dict[str, list[float]]]:
    """Collect what *trainer* notes meanwhile, and leave its own notes as they were.

    A worker computes but a part of the batches, and a step may be computed twice.
    """
    values: dict[str, list[float]] = {}
    if not _has_notes(trainer):
        yield values
        return
    kept, total = trainer._metrics[mode], getattr(trainer, _TOTAL, 0)
    trainer._metrics[mode] = defaultdict(list)
    try:
        yield values
        values |= trainer._metrics[mode]
        if TOKENS in values:
            values[TOKENS] = [getattr(trainer, _TOTAL, 0) - total]
    finally:
        trainer._metrics[mode] = kept
        if hasattr(trainer, _TOTAL):
            setattr(trainer, _TOTAL, total)


def as_step_metrics(values: dict[str, list[float]]) -> dict[str, Any]:
    """For the step's agreement: means over all micro-batches, and a sum of tokens."""
    return {name: sum(some) if name == TOKENS else (sum(some), len(some)) for name, some in values.items() if some}


def note(trainer: Any, mode: str, values: dict[str, float]) -> None:
    """Add what all workers have agreed on to *trainer*'s own notes."""
    if not _has_notes(trainer):
        return
    notes = trainer._metrics[mode]
    for name, value in values.items():
        if name == TOKENS:
            setattr(trainer, _TOTAL, getattr(trainer, _TOTAL, 0) + int(value))
            notes[TOKENS] = [getattr(trainer, _TOTAL)]
        else:
            notes[name].append(value)


def notes_of(trainer: Any) -> dict[str, Any]:
    """All of them, for a worker that joins."""
    if not _has_notes(trainer):
        return {}
    return {"total": getattr(trainer, _TOTAL, 0), **{mode: dict(notes) for mode, notes in trainer._metrics.items()}}


def set_notes(trainer: Any, saved: dict[str, Any]) -> None:
    if not saved or not _has_notes(trainer):
        return
    for mode in trainer._metrics:
        trainer._metrics[mode] = defaultdict(list, saved[mode])
    if hasattr(trainer, _TOTAL):
        setattr(trainer, _TOTAL, saved["total"])


def _has_notes(trainer: Any) -> bool:
    return isinstance(getattr(trainer, "_metrics", None), dict)
