"""What a policy is.

A policy is one small file: a class with a `name` and an `allocate` that looks at a `Snapshot` and decides which job
should have how many devices of which type. The scheduler chooses the devices and the actions that lead there:

* `Grant` for a running job changes its allocation, for a waiting one starts it, `NOTHING` suspends it. A job that the
  decision does not name keeps what it has: name only what changes, and an event costs only that.
* Counts are by device type (``{"V100": 4, "P100": 2}`` is a mixed allocation); `ANY` leaves the types to the scheduler.
* ``beside`` makes the job share the devices of another one, its host. What is left of their speeds, `shared_speeds`
  says. If the host ends, the other takes over the devices it is on.
* Time slicing is suspending some jobs, granting others, and asking to be woken (`Decision.wake_seconds`).
* `round_seconds` makes the policy be asked at multiples of it only. Without it, it is asked at every event.
* `order` is the order of the queue. It is asked once, when a job begins to wait.

Make one known under its name in ``registry.py``, or, from another package, as an entry point of the group
``virtualflow.policies``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from virtualflow.cluster.job import Job, ScheduledJob
from virtualflow.cluster.snapshot import Snapshot
from virtualflow.cluster.throughput.model import Throughput
from virtualflow.cluster.users import Sharing

ANY = "*"  # a device type for policies that only count


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may choose. Each policy takes what concerns it."""

    round: str = "any"  # wfs: "any" number of devices, or "pow2"
    useful: bool = False  # wfs: devices that bring a job nothing go to others
    round_seconds: float = 360.0  # the Gavel family: the length of a round
    backfill: bool = False  # priority and fifo: let small jobs pass a blocked one, if that does not delay it
    compat: str | None = None  # "gavel": follow another scheduler's own rules


@dataclass(frozen=True, slots=True)
class Grant:
    """Devices by type for one job; with *beside*, they are those of another job."""

    counts: Mapping[str, int] = field(default_factory=dict)
    beside: str | None = None

    @classmethod
    def of(cls, devices: int) -> Grant:
        return cls({ANY: devices})


NOTHING = Grant()


@dataclass(frozen=True, slots=True)
class Decision:
    """The grants that change, in the order in which starting and growing jobs may choose devices."""

    grants: Mapping[str, Grant] = field(default_factory=dict)
    wake_seconds: float | None = None  # ask again at this time, whatever happens before


class Policy(ABC):
    """Snapshot in, allocation out. Made anew for each run: it may keep what it needs to know from one to the next."""

    name: ClassVar[str]
    round_seconds: float | None = None  # None: asked at every event
    needs_progress: bool = False  # whether `steps_done` must be up to date
    sharing: Sharing | None = None  # how users share devices under it; None: by no weights, only caps count
    restarts: bool = False  # whether a changed allocation means a checkpoint and a restart: no elastic jobs
    changes_batch: bool = False  # whether jobs run at the batch size that is best for their devices: other results
    live_refusal: str | None = None  # why no live manager can follow it, and what to use; None: it can

    def __init__(self, options: Options = Options()) -> None:  # noqa: B008, frozen
        self.options = options

    def order(self, state: ScheduledJob, snapshot: Snapshot) -> tuple[Any, ...]:
        """The place of a waiting job in the queue: the smallest is first."""
        return (state.job.arrival_seconds,)

    def forget(self, before: Job) -> None:  # noqa: B027, few policies keep anything
        """A job's priority, demand, minimum or length is no longer that of *before*, or it has ended.

        Drop what was derived from it: under its id there may soon be another `ScheduledJob`.
        """

    def shared_speeds(self, host: Job, guest: Job, device_type: str, throughput: Throughput) -> tuple[float, float]:
        """What is left of the speeds of a host and of a job beside it. Here, what was measured of the two."""
        return throughput.slowdown(host, [guest], device_type), throughput.slowdown(guest, [host], device_type)

    @abstractmethod
    def allocate(self, snapshot: Snapshot) -> Decision: ...
