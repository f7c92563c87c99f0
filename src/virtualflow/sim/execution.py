"""One job in virtual time: which of its devices compute, how fast, and when that changes next."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from virtualflow.cluster.job import Job
from virtualflow.cluster.throughput.model import Speed
from virtualflow.sim.costs import Costs

SpeedOf = Callable[[tuple[str, ...]], Speed]


@dataclass(slots=True)
class Spent:
    """Device-seconds of the devices that were assigned to jobs, by what they did."""

    productive: float = 0.0
    restarting: float = 0.0  # booting, joining, or in a pause while the job changes its shape
    unused: float = 0.0  # assigned, but the job runs as fast without them

    @property
    def assigned(self) -> float:
        return self.productive + self.restarting + self.unused


@dataclass(slots=True)
class Execution:
    """Progress of one job. The caller passes changes in, and asks for the time of the next look."""

    job: Job
    costs: Costs
    spent: Spent
    devices: tuple[str, ...] = ()
    co_located: bool = False  # on devices of another job: they are booked there
    steps_done: float = 0.0
    resizes: int = 0
    version: int = 0  # counts changes: a look that was planned under an older version is void
    _now: float = 0.0
    _active: frozenset[str] = frozenset()  # devices that compute, or would but for a pause
    _joining: list[tuple[float, frozenset[str]]] = field(default_factory=list)
    _paused_until: float = 0.0
    _speed: Speed = Speed(0.0, 0)  # noqa: RUF009, frozen

    def start(self, now: float, devices: tuple[str, ...], *, resumed: bool) -> None:
        self.advance(now)
        self.devices, self._active, self._joining = devices, frozenset(devices), []
        self._paused_until = now + (self.costs.resume if resumed else self.costs.boot)

    def suspend(self, now: float) -> None:
        self.advance(now)
        self.devices, self._active, self._joining, self._speed = (), frozenset(), [], Speed(0.0, 0)
        self.version += 1

    def resize(self, now: float, devices: tuple[str, ...], *, restart: bool) -> None:
        self.advance(now)
        new, old = frozenset(devices), frozenset(self.devices)
        if new == old:
            return
        self.devices = devices
        self.resizes += 1
        kept, joiners = self._active & new, new - old
        if restart:
            self._active, self._joining = new, []
            self._paused_until = max(self._paused_until, now + self.costs.restart)
            return
        if kept != self._active:
            self._pause(now, self.costs.shrink)
        self._active = kept
        self._joining = [(ready, left) for ready, waiting in self._joining if (left := waiting & new)]
        if joiners:
            self._joining.append((now + self.costs.grow, joiners))

    def change(self, now: float, job: Job) -> None:
        """Its owner asks for something else; what is done is done."""
        self.advance(now)
        self.job = job

    def look(self, now: float, speed_of: SpeedOf) -> None:
        """Take in devices that are ready by now, and take on the speed that follows."""
        self.advance(now)
        ready = [waiting for at, waiting in self._joining if at <= now]
        if ready:
            self._joining = [(at, waiting) for at, waiting in self._joining if at > now]
            self._active = self._active.union(*ready)
            self._pause(now, self.costs.grow_pause)
        if not self._active:
            self._speed = Speed(0.0, 0)  # all that computed is gone, and what takes over is not ready
        elif len(self._active) == len(self.devices):
            self._speed = speed_of(self.devices)
        else:
            self._speed = speed_of(tuple(device for device in self.devices if device in self._active))
        self.version += 1

    def next_look(self) -> float:
        """When something changes by itself: a pause ends, devices are ready, or the work is done."""
        if not self.devices:
            return math.inf
        ready = min((at for at, _ in self._joining), default=math.inf)
        if self._paused_until > self._now:
            return min(self._paused_until, ready)
        if self._speed.steps_per_second == 0:
            return ready
        return min(self._now + (self.job.steps - self.steps_done) / self._speed.steps_per_second, ready)

    def ends_at(self, seconds: float) -> bool:
        """Whether the look that is due at *seconds* is the job's end."""
        if self._paused_until > self._now or not self.devices or self._speed.steps_per_second == 0:
            return False
        return self._now + (self.job.steps - self.steps_done) / self._speed.steps_per_second <= seconds

    def steps_at(self, now: float) -> float:
        """The steps that are done at *now*, without booking them: to book in two parts may round differently."""
        if not self.devices or self._paused_until > self._now:
            return self.steps_done
        return min(self.job.steps, self.steps_done + self._speed.steps_per_second * max(0.0, now - self._now))

    def advance(self, now: float) -> None:
        """Book the time that has passed. Between two looks nothing changes, so that this is exact."""
        passed = now - self._now
        if passed > 0 and self.devices:
            paused = self._paused_until > self._now
            if not paused:
                self.steps_done = min(self.job.steps, self.steps_done + self._speed.steps_per_second * passed)
            if not self.co_located:
                working = 0 if paused else self._speed.devices
                unused = 0 if paused else len(self._active) - working
                self.spent.productive += working * passed
                self.spent.unused += unused * passed
                self.spent.restarting += (len(self.devices) - working - unused) * passed
        self._now = now

    def _pause(self, now: float, seconds: float) -> None:
        self._paused_until = max(self._paused_until, now + seconds)
