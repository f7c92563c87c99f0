"""Named points in a worker's life at which the chaos tests make something happen. Nothing is armed outside of tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

POINTS = (
    "forward",
    "backward",
    "bucket",
    "before the scalars",
    "after the scalars",
    "optimizer",
    "share",
    "squares",
    "after the update",
    "parameters",
    "move state",
    "after the commit",
    "evaluate",
    "save",
    "send state",
    "receive state",
    "joining",
    "form group",
    "compare connections",
)
STAGE_POINTS = (  # of a job whose model is cut into stages, besides those of every step
    "send activations",
    "receive activations",
    "send gradients",
    "receive gradients",
    "shadow",
    "shadow's update",
    "before the squares",
)
FLIP_POINTS = (  # at which a test can change tensors, as a broken device or a cosmic ray would
    "activations",  # a test's model itself exposes them
    "gradients",
    "sums",
    "received buckets",
    "parameters",
    "optimizer state",
    "state transfers",
)
_hook: Callable[[str], None] | None = None
_damage: Callable[[str, Sequence[Any]], None] | None = None


def arm(hook: Callable[[str], None] | None) -> None:
    """Have *hook* called with the name of every point that this process reaches."""
    global _hook
    _hook = hook


def reach(point: str) -> None:
    """Say that this process has reached *point*."""
    if _hook is not None:
        _hook(point)


def arm_damage(damage: Callable[[str, Sequence[Any]], None] | None) -> None:
    """Have *damage* called with each of FLIP_POINTS that this process reaches, and the tensors that are there."""
    global _damage
    _damage = damage


def expose(point: str, tensors: Sequence[Any]) -> None:
    """Let a test damage *tensors*, which are in use at *point*."""
    if _damage is not None:
        _damage(point, tensors)
