"""Gavel's least attained service: max-min shares, in speeds that can be compared."""

from __future__ import annotations

from collections.abc import Sequence

from virtualflow.cluster.job import Job
from virtualflow.cluster.linear_programs import Floats, max_min, water_filling
from virtualflow.cluster.policies.gavel import PAPER, Column, Entry, Gavel
from virtualflow.cluster.snapshot import Snapshot
from virtualflow.cluster.users import Sharing


class Las(Gavel):
    """Max-min fairness over what a job gets of its devices, by weight, against the whole cluster shared out evenly."""

    name = "las"
    sharing = Sharing.TIME

    def shares(self, entries: Sequence[Entry], snapshot: Snapshot) -> Floats:
        return max_min(self.program(entries, snapshot)).shares

    def values(self, job: Job, columns: Sequence[Column], snapshot: Snapshot) -> list[float]:
        usual = self.usual_speed(columns, snapshot)
        if not usual:  # all devices that it can use are lost
            return [0.0] * len(columns)
        scale = 1 / (job.priority * usual)
        return [column.worth * scale for column in columns]

    def usual_speed(self, columns: Sequence[Column], snapshot: Snapshot) -> float:
        """A job's speed if its time went to the types in proportion to their devices; in the paper's, evenly."""
        alone = [(column.steps_per_second, name) for column in columns for name in _only(column)]
        if self.options.compat == PAPER:
            return sum(speed for speed, _ in alone) / len(alone)
        return sum(speed * snapshot.capacity[name] for speed, name in alone) / max(1, snapshot.devices)


class LasAgnostic(Las):
    """As if every type were equally fast."""

    name = "las-agnostic"

    def values(self, job: Job, columns: Sequence[Column], snapshot: Snapshot) -> list[float]:
        return [column.devices / job.priority if column.steps_per_second else 0.0 for column in columns]


class WaterFilling(Las):
    """As `Las`, and then the same again for the jobs that can have more than the smallest share."""

    name = "water-filling"

    def shares(self, entries: Sequence[Entry], snapshot: Snapshot) -> Floats:
        return water_filling(self.program(entries, snapshot)).shares


def _only(column: Column) -> list[str]:
    """The type of a column, if there is just one."""
    return list(column.counts) if len(column.counts) == 1 else []
