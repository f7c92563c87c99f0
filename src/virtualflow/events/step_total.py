"""How many steps a job makes in all: scripts announce batches, and a batch may be a step of several phases."""

from __future__ import annotations

from virtualflow.events.event_types import EpochStarted, StepDone, StreamEvent


class StepTotal:
    """*steps* is that number as far as it is known: of phases, by how many of them the batches so far had."""

    def __init__(self) -> None:
        self.steps: int | None = None
        self._batches = self._per_epoch = 0
        self._latest, self._steps_before = -1, 0  # the batch that steps are made of, and steps before it

    def add(self, event: StreamEvent) -> None:
        """Take in the next event."""
        if isinstance(event, EpochStarted):
            had, self._batches, self._per_epoch = self._batches, event.epochs * event.steps, event.steps
            self.steps = self._batches if not had or self.steps is None else round(self.steps * self._batches / had)
        elif isinstance(event, StepDone) and event.phase and self._batches:
            batch = event.epoch * self._per_epoch + event.batch
            if batch != self._latest:
                self._latest, self._steps_before = batch, event.step
            steps, batches = (self._steps_before, batch) if batch else (event.step + 1, 1)  # those that are done
            self.steps = max(event.step + 1, round(self._batches * steps / batches))
