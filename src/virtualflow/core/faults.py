"""Named points in a worker's life at which the chaos tests make something happen. Nothing is armed outside of tests."""

from __future__ import annotations

from collections.abc import Callable

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
_hook: Callable[[str], None] | None = None


def arm(hook: Callable[[str], None] | None) -> None:
    """Have *hook* called with the name of every point that this process reaches."""
    global _hook
    _hook = hook


def reach(point: str) -> None:
    """Say that this process has reached *point*."""
    if _hook is not None:
        _hook(point)
