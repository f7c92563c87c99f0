"""First come, first served, on the full demand."""

from __future__ import annotations

from typing import Any

from virtualflow.cluster.job import ScheduledJob
from virtualflow.cluster.policies.priority import Priority
from virtualflow.cluster.snapshot import Snapshot


class Fifo(Priority):
    """Like static priority, with the time of arrival as the only priority."""

    name = "fifo"

    def order(self, state: ScheduledJob, snapshot: Snapshot) -> tuple[Any, ...]:
        return (state.job.arrival_seconds,)
