"""AntMan (Xiao et al., OSDI '20): guaranteed jobs keep their speed, others run in what those leave of the devices.

A *resource-guarantee* job has its full demand to itself until it ends, first come, first served. An *opportunistic* job
runs on devices that nobody is guaranteed, or as a guest beside a job that has a guarantee: its kernels are let through
in the gaps of its host's, and its memory gives way to the host's, by way of the machine's. When a job with a guarantee
needs the devices, the opportunistic one moves or waits.

Rules taken from its authors' own scheduler (github.com/alibaba/GPU-scheduler-for-deep-learning, ``antman.go``): a guest
goes to the device that is the least busy, and to none that is busy for 80% of the time or more; one guest at a time.

**Interference.** A job alone keeps its device busy for a part u of the time. Device time adds up: for host and guest
together, speeds times u are at most 1. The guest may have what the host leaves, and so much more that the host loses
`BOUND` of its speed at most; what it is held back by is computation that is not let through. u comes from what two
copies of the job do on one device, measured: half of its inverse. A job that was not measured leaves no gaps.

Assumed, since we know neither figures nor code for them: the bound of 5%; that a guest which does not fit into the
memory beside its host goes on at half of its speed, out of the machine's memory (`SPILLED`); that adjusting takes no
time. Traces name no tenants and quotas: there is one tenant, and its quota is the cluster. So a job is opportunistic as
long as devices for it are lacking, and gets its guarantee when it is first in line (by priority, then arrival) and its
demand is there: AntMan's job type "auto".
"""

from __future__ import annotations

from collections.abc import Mapping

from virtualflow.cluster.job import Job, ScheduledJob
from virtualflow.cluster.policies.base import Decision, Options, Policy
from virtualflow.cluster.policies.guests import grants_with_guests
from virtualflow.cluster.snapshot import Snapshot
from virtualflow.cluster.throughput.model import Throughput

BOUND = 0.05  # of its speed: what a host may lose
BUSY = 0.8  # a device that is busy for as much of the time takes no guest
SPILLED = 0.5  # of its speed: what is left of a guest that does not fit into the memory


class Antman(Policy):
    """Guarantees, and guests."""

    name = "antman"
    restarts = True  # its jobs do not change their size; one that moves begins from a checkpoint
    live_refusal = (
        "it holds back the kernels and the memory of a job that shares devices, which a live job has no means for. "
        "Use gandiva, which shares devices by turns, or priority, which shares none"
    )

    def __init__(self, options: Options = Options(), *, bound: float = BOUND) -> None:  # noqa: B008, frozen
        super().__init__(options)
        self._bound = bound
        self._guaranteed: dict[str, str] = {}  # job -> the type of its devices, in the order of their guarantees

    def order(self, state: ScheduledJob, snapshot: Snapshot) -> tuple[float, float]:
        return (-state.job.priority, state.job.arrival_seconds)

    def shared_speeds(self, host: Job, guest: Job, device_type: str, throughput: Throughput) -> tuple[float, float]:
        host_busy, guest_busy = (busy(job, device_type, throughput) for job in (host, guest))
        fits = throughput.slowdown(guest, [host], device_type) > 0
        allowed = 1 - (1 - self._bound) * host_busy
        of_guest = min(1.0, allowed / guest_busy) * (1.0 if fits else SPILLED)
        return min(1.0, (1 - of_guest * guest_busy) / host_busy), of_guest

    def allocate(self, snapshot: Snapshot) -> Decision:
        states = {state.id: state for state in snapshot.jobs()}
        waiting = sorted(states.values(), key=lambda state: (*self.order(state, snapshot), state.id))
        own, free = self._guarantee(states, waiting, snapshot)
        beside: dict[str, str] = {}
        for state in waiting:
            if state.id not in self._guaranteed:
                self._let_in(state, own, beside, free, states, snapshot)
        guests = {name: (host, dict.fromkeys(own[host], states[name].job.demand)) for name, host in beside.items()}
        return Decision(grants_with_guests(own, guests, states))

    def _guarantee(
        self, states: Mapping[str, ScheduledJob], waiting: list[ScheduledJob], snapshot: Snapshot
    ) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
        """Devices of jobs with a guarantee: those that have one keep it, others follow in order. And what is left."""
        own: dict[str, dict[str, int]] = {}
        free = dict(snapshot.capacity)
        kept = {name: kind for name, kind in self._guaranteed.items() if name in states}
        self._guaranteed = {}
        for name, kind in kept.items():
            self._take(states[name], [kind], own, free, snapshot)
        for state in waiting:
            if state.id in kept or not _usable(state, snapshot):
                continue
            kinds = sorted(free, key=lambda kind: not (state.counts.get(kind) and state.host is None))
            if not self._take(state, kinds, own, free, snapshot):
                break  # devices are kept for it; meanwhile they are for opportunistic jobs
        return own, free

    def _take(
        self,
        state: ScheduledJob,
        kinds: list[str],
        own: dict[str, dict[str, int]],
        free: dict[str, int],
        snapshot: Snapshot,
    ) -> bool:
        """Guarantee a job its demand of the first type that has as much."""
        for kind in kinds:
            if count := _wanted(state, kind, free, snapshot):
                free[kind] -= count
                own[state.id] = {kind: count}
                self._guaranteed[state.id] = kind
                return True
        return False

    def _let_in(
        self,
        state: ScheduledJob,
        own: dict[str, dict[str, int]],
        beside: dict[str, str],
        free: dict[str, int],
        states: Mapping[str, ScheduledJob],
        snapshot: Snapshot,
    ) -> None:
        """Run an opportunistic job: on idle devices, where it is before where it is not, else beside a host."""
        for kind in sorted(free, key=lambda kind: not (state.counts.get(kind) and state.host is None)):
            if count := _wanted(state, kind, free, snapshot):
                free[kind] -= count
                own[state.id] = {kind: count}
                return
        hosts = [
            (busy(states[host].job, kind, snapshot.throughput), host != state.host, place, host)
            for place, (host, kind) in enumerate(self._guaranteed.items())
            if host not in beside.values() and self._has_room(states[host], own[host], state, snapshot)
        ]
        if hosts and min(hosts)[0] < BUSY:
            beside[state.id] = min(hosts)[-1]

    def _has_room(self, host: ScheduledJob, counts: Mapping[str, int], guest: ScheduledJob, snapshot: Snapshot) -> bool:
        """Whether all of a guest has seats on the devices of a host."""
        ((kind, count),) = counts.items()
        return guest.job.demand <= count and snapshot.throughput.usable(guest.job, kind)


def busy(job: Job, device_type: str, throughput: Throughput) -> float:
    """The part of the time for which a job alone keeps its device busy, from what two copies of it do on one."""
    left = throughput.slowdown(job, [job], device_type)
    return min(1.0, 1 / (2 * left)) if left > 0 else 1.0


def _usable(state: ScheduledJob, snapshot: Snapshot) -> bool:
    """Whether the cluster as it is could meet its demand at all: who waits for lost devices holds up nobody."""
    return any(_wanted(state, kind, snapshot.capacity, snapshot) for kind in snapshot.capacity)


def _wanted(state: ScheduledJob, kind: str, free: Mapping[str, int], snapshot: Snapshot) -> int:
    """How many devices of a type it would have: its demand, or all there are; 0 if they are not free."""
    count = min(state.job.demand, snapshot.capacity[kind])
    fits = state.job.min <= count <= free[kind] and snapshot.throughput.usable(state.job, kind)
    return count if fits else 0
