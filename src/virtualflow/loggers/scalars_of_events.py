"""What an event says in numbers, by name and step."""

from __future__ import annotations

import math

from virtualflow.events import Evaluated, Regrouped, StepDone, StreamEvent


def scalars(event: StreamEvent) -> tuple[int, dict[str, float]]:
    """The step of *event*, and its numbers; none for an event that has no numbers to show."""
    if isinstance(event, StepDone):
        loss = f"{event.phase} loss".strip()
        speed = event.examples / max(event.seconds, 1e-9)
        return event.step, _finite({loss: event.loss, "examples per second": speed, **event.metrics})
    if isinstance(event, Evaluated):
        return event.step, _finite({event.name: event.value})
    if isinstance(event, Regrouped):
        return event.step, _finite({"devices": len(event.devices), "pause in ms": sum(event.pause_ms.values())})
    return 0, {}


def _finite(values: dict[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if math.isfinite(value)}
