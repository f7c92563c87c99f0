"""Pollux (Qiao et al., OSDI '21): the batch size, and with it what is trained, follows from the devices.

Each job runs at the batch size at which its *goodput*, throughput times the worth of an example, is largest on the
devices it has; the learning rate is scaled along. So **the result of training depends on the schedule**. Every minute
devices are shared out so that the power mean (exponent -1) of all jobs' speedups is largest. A speedup is a job's
goodput against that on its fair share of the devices; where a change would restart a job, it counts less the more of
its life the job has spent on restarts already. A job gets at most twice the devices that it ever had. Rule, factors and
interval are those of its authors' simulator (github.com/petuum/adaptdl, branch osdi21-artifact, ``pollux.py``).

Adapted:

* Their genetic algorithm searches placements; here the best numbers of devices are found exactly, by dynamic
  programming, with devices close together, and the scheduler finds the places.
* Goodput is known, where their agent fits it as the job runs; the worth of an example is an average over the training
  (`cluster.throughput.goodput`). Where nothing is known of a workload's batch sizes, its batch stays as it is.
* No job has more devices than its demand. In theirs the limit is what the largest batch can use: set the demand to it.
* On several types, of which Pollux knows nothing, a job stays on the one that had the fewest jobs for its devices when
  it came.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from virtualflow.cluster.job import ScheduledJob
from virtualflow.cluster.policies.base import Decision, Options, Policy
from virtualflow.cluster.policies.restart_history import RestartHistory
from virtualflow.cluster.snapshot import Snapshot

ROUND_SECONDS = 60.0
WITHOUT = 1e-3  # is added to speedups, so that a job without devices makes the mean small, and not 0

Floats = NDArray[np.float64]


class Pollux(Policy):
    """The largest power mean of speedups."""

    name = "pollux"
    round_seconds = ROUND_SECONDS
    restarts = True
    changes_batch = True
    live_refusal = (
        "it changes the batch size of running jobs, and with it what they train. Use wfs --useful, which gives devices "
        "to those whom they help and leaves the batch alone"
    )

    def __init__(self, options: Options = Options()) -> None:  # noqa: B008, frozen
        super().__init__(options)
        self._types: dict[str, str] = {}
        self._history = RestartHistory()

    def allocate(self, snapshot: Snapshot) -> Decision:
        states = {state.id: state for state in snapshot.jobs()}
        self._history.forget_others(states)
        self._types = {name: kind for name, kind in self._types.items() if name in states}
        chosen = [
            (state, kind, count)
            for kind, own in self._by_type(states, snapshot).items()
            for state, count in zip(own, self._counts(own, kind, snapshot), strict=True)
            if count
        ]
        return self._history.decision(chosen, snapshot)

    def _by_type(self, states: dict[str, ScheduledJob], snapshot: Snapshot) -> dict[str, list[ScheduledJob]]:
        placed: dict[str, list[ScheduledJob]] = {kind: [] for kind, count in snapshot.capacity.items() if count}
        for name, kind in self._types.items():
            if kind in placed:
                placed[kind].append(states[name])
        for name, state in states.items():
            usable = [kind for kind in placed if snapshot.throughput.usable(state.job, kind)]
            if self._types.get(name) not in placed and usable:
                best = min(usable, key=lambda kind: len(placed[kind]) / snapshot.capacity[kind])
                self._types[name] = best
                placed[best].append(state)
        return placed

    def _counts(self, states: Sequence[ScheduledJob], kind: str, snapshot: Snapshot) -> list[int]:
        capacity = snapshot.capacity[kind]
        fair = max(1, math.ceil(capacity / max(1, len(states))))
        return shared_out([self._costs(state, kind, fair, snapshot) for state in states], capacity)

    def _costs(self, state: ScheduledJob, kind: str, fair: int, snapshot: Snapshot) -> Floats:
        """1 / speedup of a job on 0, 1, 2, ... devices. Of fewer than its minimum it makes no use."""
        most = min(snapshot.capacity[kind], self._history.limit(state.job))
        usual = snapshot.steps_per_second(state.job, kind, max(state.job.min, min(fair, state.job.demand)))
        factor = self._history.kept_part(state, snapshot.now)
        speedups = np.zeros(most + 1)
        for count in range(state.job.min, most + 1):
            speed = snapshot.steps_per_second(state.job, kind, count) / usual if usual else 0.0
            speedups[count] = speed if state.counts == {kind: count} else speed * factor
        costs: Floats = 1 / (speedups + WITHOUT)
        costs[1 : state.job.min] = math.inf
        return costs


def shared_out(costs: Sequence[Floats], devices: int) -> list[int]:
    """The numbers of devices for which the sum of costs is smallest: *costs* has a job's on 0, 1, 2, ... of them."""
    least = np.zeros(devices + 1)  # of the jobs so far, by the number of devices that they have at most
    chosen = []
    for own in costs:
        totals = np.full((len(own), devices + 1), math.inf)
        for count, cost in enumerate(own[: devices + 1]):
            totals[count, count:] = least[: devices + 1 - count] + cost
        best = totals.argmin(axis=0)
        chosen.append(best)
        least = totals[best, np.arange(devices + 1)]
    counts, left = [], devices
    for best in reversed(chosen):
        counts.append(int(best[left]))
        left -= counts[-1]
    return counts[::-1]
