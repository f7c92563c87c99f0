"""Optimus (Peng et al., EuroSys '18): devices go where they shorten a job the most.

Every ten minutes all is shared out anew. Each job gets one device, in the order of arrival, so that nobody starves.
Then the job that gains the most from one more gets it, and so on, until nothing is left or nobody gains. The gain is
the fall of the time to its end, Q / f, with Q the steps to go and f the speed. Rule, order, ties and the interval are
those of its authors' own scheduler (github.com/pengyanghua/optimus, ``optimus_scheduler.py`` and ``params.py``).

Adapted, as in the evaluation of Pollux (OSDI '21), which calls it Optimus+Oracle:

* A job has devices, not workers and parameter servers. With one resource, the gain by unit of the dominant one is the
  gain by device.
* f comes from profiles, where Optimus fits it to a few trial runs, and Q is known, where it fits the loss.
* A gain may lie some devices ahead: 8 virtual nodes run on 5 devices no faster than on 4. So a step may be of several
  devices, at its gain for each of them. The authors' code has the same thought ("sometimes can allocate multiple ... to
  avoid stuck in local optimal"). Where every device gains less than the one before, it is the paper's rule.
* On several types, a job runs on one: where a single device is fastest for it when its turn comes.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from virtualflow.cluster.job import ScheduledJob
from virtualflow.cluster.policies.base import NOTHING, Decision, Grant, Policy
from virtualflow.cluster.snapshot import Snapshot

ROUND_SECONDS = 600.0


class Optimus(Policy):
    """Greedy by marginal gain."""

    name = "optimus"
    round_seconds = ROUND_SECONDS
    needs_progress = True
    restarts = True  # its jobs change their size by a checkpoint

    def allocate(self, snapshot: Snapshot) -> Decision:
        grants = dict.fromkeys(snapshot.running, NOTHING)
        changed = []
        for device_type, states in self._by_type(snapshot).items():
            times = [_times(state, device_type, snapshot) for state in states]
            counts = shared_out(times, snapshot.capacity[device_type], [state.job.min for state in states])
            for state, count in zip(states, counts, strict=True):
                grants.pop(state.id, None)
                if state.counts != {device_type: count}:
                    changed.append((state.id, Grant({device_type: count})))
        changed.sort(key=lambda change: -sum(change[1].counts.values()))
        return Decision(grants | dict(changed))

    def _by_type(self, snapshot: Snapshot) -> dict[str, list[ScheduledJob]]:
        """Who runs, and on which type: first come, first served, one device each, or as many as it needs at least."""
        free = dict(snapshot.capacity)
        placed: dict[str, list[ScheduledJob]] = {name: [] for name in free}
        for state in sorted(snapshot.jobs(), key=lambda state: (state.job.arrival_seconds, state.id)):
            speeds = {
                name: snapshot.steps_per_second(state.job, name, 1) for name in free if free[name] >= state.job.min
            }
            if any(speeds.values()):
                best = max(speeds, key=lambda name: speeds[name])
                placed[best].append(state)
                free[best] -= state.job.min
        return placed


def shared_out(times: Sequence[Sequence[float]], devices: int, minimums: Sequence[int] | None = None) -> list[int]:
    """How many devices each job gets, at least one: *times* has the seconds to its end on 1, 2, 3, ... of them."""
    counts = [1] * len(times) if minimums is None else list(minimums)
    left = devices - sum(counts)
    gains: list[tuple[float, int, int]] = []
    for place in range(len(times)):
        _offer(gains, place, times[place], counts[place], left)
    while gains:
        _, place, step = heapq.heappop(gains)
        if step <= left:
            counts[place] += step
            left -= step
        _offer(gains, place, times[place], counts[place], left)
    return counts


def _offer(gains: list[tuple[float, int, int]], place: int, times: Sequence[float], count: int, left: int) -> None:
    """Note the step of a job that gains the most by device. Of equal ones, the earlier job's, and the shorter."""
    best, step = 0.0, 0
    for more in range(1, min(left, len(times) - count) + 1):
        gain = (times[count - 1] - times[count + more - 1]) / more
        if gain > best:
            best, step = gain, more
    if step:
        heapq.heappush(gains, (-best, place, step))


def _times(state: ScheduledJob, device_type: str, snapshot: Snapshot) -> list[float]:
    """Q / f on 1, 2, 3, ... devices, up to the demand."""
    most = min(state.job.demand, snapshot.capacity[device_type])
    speeds = (snapshot.steps_per_second(state.job, device_type, count) for count in range(1, most + 1))
    return [state.steps_left / speed if speed else math.inf for speed in speeds]
