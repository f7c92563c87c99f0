"""Themis (Mahajan et al., NSDI '20): auctions for finish-time fairness.

A job's finish-time fairness is rho = T_shared / T_independent: when it will end here, against when it would have ended
on a cluster of its own with a 1/N share of the devices, N being the average number of jobs in its time. Devices are
leased. Whenever some are free, or their lease is over, they are auctioned:

1. The 1 - f of all jobs with the largest rho may bid (f = 0.8, the paper's choice).
2. A bid is a table: 1 / rho for every number of devices more.
3. The *partial allocation* mechanism (Cole, Gkatzelis and Goel, EC '13) decides. The devices are shared out so that the
   product of the bids is largest. Of what it won, a job keeps the part c: the product of the others' bids there, over
   what that would be without the job. The rest is its hidden payment: nobody gains from a bid that is not true.
4. What is left over goes to jobs that did not bid, one device at a time and at random.

T_shared is the time since arrival, and what is left to do at the speed of the bid.

Adapted: an app is one job. There are no more bidders than devices, since a job without any makes every product 0. Part
of a whole number of devices is rounded up or down by chance (seeded), so that it is right on average. What nobody else
takes goes back to the bidders. Several types have an auction each, in the cluster's order, and a job stays on
one. Bids are for numbers of devices, not for places: here the scheduler sees to it that they are close together.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from virtualflow.cluster.job import ScheduledJob
from virtualflow.cluster.policies.base import NOTHING, Decision, Grant, Options, Policy
from virtualflow.cluster.snapshot import Snapshot

FAIRNESS = 0.8  # f: the part of the jobs that may not bid
LEASE_SECONDS = 1200.0
SOON = 1e-6  # seconds
FAIREST = 1e-9  # no rho is smaller: bids are finite


@dataclass(frozen=True, slots=True)
class Lease:
    """*count* devices, until a time in seconds."""

    count: int
    until: float


@dataclass(slots=True)
class App:
    """A job with its leases."""

    state: ScheduledJob
    job_seconds: float  # the integral of the number of jobs when it came
    device_type: str | None = None
    leases: tuple[Lease, ...] = ()

    @property
    def devices(self) -> int:
        return sum(lease.count for lease in self.leases)

    @property
    def fewest_more(self) -> int:
        """Of fewer devices than that it would make no use."""
        return max(1, self.state.job.min - self.devices)


class Themis(Policy):
    """Leases and auctions."""

    name = "themis"
    needs_progress = True
    restarts = True

    def __init__(
        self,
        options: Options = Options(),  # noqa: B008, frozen
        *,
        fairness: float = FAIRNESS,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        super().__init__(options)
        self._fairness, self._lease_seconds = fairness, lease_seconds
        self._apps: dict[str, App] = {}
        self._job_seconds = self._looked = 0.0
        self._chance = random.Random(0)
        self._asked = -1.0

    def allocate(self, snapshot: Snapshot) -> Decision:
        self._meet(snapshot)
        for device_type, capacity in snapshot.capacity.items():
            leased = sum(app.devices for app in self._apps.values() if app.device_type == device_type)
            if capacity > leased:
                self._auction(device_type, capacity - leased, snapshot)
        grants = {}
        for name, app in self._apps.items():
            counts = {app.device_type: app.devices} if app.device_type and app.devices else {}
            if app.state.counts != counts:
                grants[name] = Grant(counts) if counts else NOTHING
        return Decision(grants, self._wake(snapshot.now))

    def _meet(self, snapshot: Snapshot) -> None:
        """Forget jobs that ended and leases that are over; note new jobs, and how many there are."""
        now, present = snapshot.now, {state.id: state for state in snapshot.jobs()}
        self._job_seconds += len(self._apps) * (now - self._looked)
        self._looked = now
        self._apps = {name: app for name, app in self._apps.items() if name in present}
        for name, state in present.items():
            app = self._apps.setdefault(name, App(state, self._job_seconds))
            app.state = state  # another one, if the job has come back or the scheduler was made anew
            app.leases = tuple(lease for lease in app.leases if lease.until > now + SOON)
            if app.devices > state.allocation:  # some were lost
                app.leases = (Lease(state.allocation, app.leases[-1].until),) if state.allocation else ()
            if app.devices < state.job.min:  # too few to run on
                app.leases = ()
            if not app.leases:
                app.device_type = None

    def _auction(self, device_type: str, devices: int, snapshot: Snapshot) -> None:
        apps = [app for app in self._apps.values() if self._wants(app, device_type, snapshot)]
        apps.sort(key=lambda app: self._rank(app, snapshot))
        number = min(len(apps), devices, math.ceil((1 - self._fairness) * len(self._apps)))
        bidders = _that_fit(apps, number, devices)
        others = [app for app in apps if app not in bidders]
        tables = [self._bid(app, device_type, devices, snapshot) for app in bidders]
        left = devices
        for app, share in zip(bidders, partial_allocation(tables, devices), strict=True):
            count = math.floor(share) + (self._chance.random() < share - math.floor(share))
            if 0 < app.devices + count < app.state.job.min:
                count = app.fewest_more  # no payment takes what it can't do without
            left -= self._lease(app, device_type, count, snapshot.now)
        while left and (takers := self._takers(others, device_type, left, snapshot)):
            app = self._chance.choice(takers)
            left -= self._lease(app, device_type, app.fewest_more, snapshot.now)
        while left and (takers := self._takers(bidders, device_type, left, snapshot)):
            left -= self._lease(takers[0], device_type, takers[0].fewest_more, snapshot.now)

    def _takers(self, apps: Sequence[App], device_type: str, left: int, snapshot: Snapshot) -> list[App]:
        return [app for app in apps if app.fewest_more <= left and self._wants(app, device_type, snapshot)]

    def _wants(self, app: App, device_type: str, snapshot: Snapshot) -> bool:
        if app.device_type is None:
            return snapshot.throughput.usable(app.state.job, device_type)
        return app.device_type == device_type and app.devices < app.state.job.demand

    def _lease(self, app: App, device_type: str, count: int, now: float) -> int:
        if count:
            app.device_type = device_type
            app.leases = (*app.leases, Lease(count, now + self._lease_seconds))
        return count

    def _rank(self, app: App, snapshot: Snapshot) -> tuple[float, float, str]:
        """The largest rho first. Without devices it is infinite; of those, as if they had all they ask for."""
        speed = self._speed(app, app.device_type, app.devices, snapshot) if app.device_type else 0.0
        rho = self._rho(app, speed, snapshot)
        hoped = self._rho(app, snapshot.fastest(app.state.job), snapshot)
        return -rho, -hoped, app.state.id

    def _bid(self, app: App, device_type: str, devices: int, snapshot: Snapshot) -> list[float]:
        """1 / rho with 0, 1, 2, ... devices more."""
        most = min(devices, app.state.job.demand - app.devices)
        speeds = (self._speed(app, device_type, app.devices + more, snapshot) for more in range(most + 1))
        bids = [1 / self._rho(app, speed, snapshot) for speed in speeds]
        too_few = range(max(0, app.state.job.min - app.devices))  # worth nothing
        return [0.0 if more in too_few else bid for more, bid in enumerate(bids)]

    def _rho(self, app: App, speed: float, snapshot: Snapshot) -> float:
        if not speed:
            return math.inf
        elapsed = max(0.0, snapshot.now - app.state.job.arrival_seconds)
        rho = (elapsed + app.state.steps_left / speed) / self.independent_seconds(app, snapshot)
        return max(FAIREST, rho)

    def independent_seconds(self, app: App, snapshot: Snapshot) -> float:
        """How long the job takes on a 1/N share of the devices, of the type where that is fastest."""
        elapsed = max(0.0, snapshot.now - app.state.job.arrival_seconds)
        mean_jobs = (self._job_seconds - app.job_seconds) / elapsed if elapsed > SOON else float(len(self._apps))
        best = 0.0
        for device_type, capacity in snapshot.capacity.items():
            share = capacity / max(1.0, mean_jobs)
            whole = max(1, min(math.floor(share), app.state.job.demand))
            best = max(best, min(1.0, share) * self._speed(app, device_type, whole, snapshot))
        # Where not even one device of its share can be used, its own speed has to do.
        return app.state.job.steps / (best or snapshot.fastest(app.state.job))

    def _speed(self, app: App, device_type: str, count: int, snapshot: Snapshot) -> float:
        return snapshot.steps_per_second(app.state.job, device_type, count)

    def _wake(self, now: float) -> float | None:
        """When the next lease ends."""
        due = min((lease.until for app in self._apps.values() for lease in app.leases), default=math.inf)
        if due == math.inf or due == self._asked:
            return None
        self._asked = due
        return due


def _that_fit(apps: Sequence[App], number: int, devices: int) -> list[App]:
    """The first *number* of those who can all have what they need at least: who gets nothing makes every product 0."""
    fitting: list[App] = []
    for app in apps:
        if len(fitting) < number and app.fewest_more <= devices:
            fitting.append(app)
            devices -= app.fewest_more
    return fitting


def partial_allocation(tables: Sequence[Sequence[float]], devices: int) -> list[float]:
    """What each bidder keeps: *tables* has its bids for 0, 1, 2, ... devices. The parts are not whole numbers."""
    won, payments = proportionally_fair(tables, devices)
    return [count * part for count, part in zip(won, payments, strict=True)]


def proportionally_fair(tables: Sequence[Sequence[float]], devices: int) -> tuple[list[int], list[float]]:
    """The numbers of devices for which the product of bids is largest, and the part c of it that each one keeps."""
    logs = [[math.log(bid) if bid > 0 else -math.inf for bid in table] for table in tables]
    before = _best_of_prefixes(logs, devices)  # [i][n]: the first i bidders, with at most n devices
    behind = _best_of_prefixes(logs[::-1], devices)[::-1]
    won = [0] * len(logs)
    left = devices
    for place in reversed(range(len(logs))):
        sums = [before[place][left - count] + log for count, log in enumerate(logs[place][: left + 1])]
        won[place] = sums.index(max(sums))
        left -= won[place]
    whole = [table[count] for table, count in zip(logs, won, strict=True)]
    parts = []
    for place in range(len(logs)):
        without = max(before[place][count] + behind[place + 1][devices - count] for count in range(devices + 1))
        with_it = math.fsum(log for other, log in enumerate(whole) if other != place)
        parts.append(min(1.0, math.exp(with_it - without)) if without > -math.inf else 1.0)
    return won, parts


def _best_of_prefixes(logs: Sequence[Sequence[float]], devices: int) -> list[list[float]]:
    best = [[0.0] * (devices + 1)]
    for table in logs:
        last = best[-1]
        best.append(
            [
                max(last[total - count] + log for count, log in enumerate(table[: total + 1]))
                for total in range(devices + 1)
            ]
        )
    return best
