"""An epoch for a loop that the Trainer does not own."""

from __future__ import annotations

from collections.abc import Callable

from virtualflow.core.sharding import EpochPlan, GlobalBatch


class OpenPass:
    """One pass over the data, of which somebody else's loop takes the batches, in order, from *first_step* on."""

    def __init__(
        self,
        plan: EpochPlan,
        first_step: int,
        cross: Callable[[int], None],
        close: Callable[[], None],
    ) -> None:
        self.first_step = first_step
        self._plan = plan
        self._cross = cross
        self._close = close

    @property
    def steps(self) -> int:
        return self._plan.steps

    def batch(self, step: int) -> GlobalBatch:
        """What *step* works on. Here, before the step, workers come and go, and the job may stop."""
        self._cross(step)
        return self._plan.batch(step)

    def finish(self) -> None:
        """The epoch's last step is made: workers compare what they hold, and the certificate gets its digest."""
        self._close()
