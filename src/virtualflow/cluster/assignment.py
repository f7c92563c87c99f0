"""Who has which devices, and the actions that lead from one answer to the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from virtualflow.cluster.job import Job, ScheduledJob
from virtualflow.cluster.messages import Action, ReallocateJob, StartJob, SuspendJob
from virtualflow.cluster.placement import Placement
from virtualflow.cluster.policies.base import ANY, NOTHING, Grant
from virtualflow.cluster.throughput.model import Throughput
from virtualflow.errors import PolicyError


class Assignment:
    """The devices of running jobs. All frees of a decision come before all fills."""

    def __init__(self, placement: Placement, throughput: Throughput, *, restarts: bool) -> None:
        self.placement = placement
        self.running: dict[str, ScheduledJob] = {}
        self.lacking = 0  # devices that running jobs ask for beyond what they have
        self._throughput = throughput
        self._restarts = restarts

    def apply(self, now: float, grants: Sequence[tuple[ScheduledJob, Grant]]) -> list[Action]:
        """Give and take devices. Jobs that lose all of them are among the `SuspendJob` actions."""
        actions: list[Action] = []
        kept: dict[str, list[str]] = {}
        for state, grant in grants:
            kept[state.id] = self._free_surplus(state, grant)
            if state.host is not None and grant.beside != state.host:
                self._leave_host(state)
        for state, _ in grants:
            for other in [self.running[name] for name in state.co_located]:
                if other.id not in kept and not set(other.devices) <= set(kept[state.id]):
                    actions.append(self._suspend(now, other))  # its seat went away with the host's device
        for state, grant in grants:
            devices = self._seats(state, grant) if grant.beside else self._fill(state, grant, kept[state.id])
            action = self._change(now, state, devices, grant.beside)
            if action is not None:
                actions.append(action)
        return actions

    def adopt(self, now: float, state: ScheduledJob, devices: tuple[str, ...]) -> list[Action]:
        """A job has these devices already; if they are too few for it, or do not hold it, it gives them up."""
        self.placement.claim(devices)
        self._set(now, state, self.placement.in_order(devices), None)
        return self._give_up_too_few(now, state)

    def ask_for(self, now: float, state: ScheduledJob, job: Job) -> list[Action]:
        """A running job asks for more or fewer devices than before; what it no longer wants, it gives up at once.

        All, if it has fewer than its new minimum: the policy sees whether it can have more.
        """
        self.lacking += max(0, job.demand - state.allocation) - max(0, state.job.demand - state.allocation)
        state.job = job
        if state.allocation > job.demand and state.host is None:
            return self.apply(now, [(state, Grant.of(job.demand))])
        return self._give_up_too_few(now, state)

    def _give_up_too_few(self, now: float, state: ScheduledJob) -> list[Action]:
        types = state.job.types
        has_room = types is None or types.issuperset(state.counts)
        return [] if has_room and state.allocation >= state.job.min else self.apply(now, [(state, NOTHING)])

    def end(self, now: float, state: ScheduledJob) -> list[Action]:
        """Free the devices of a job that is over; jobs beside it take over those they are on."""
        actions: list[Action] = []
        inherited: set[str] = set()
        for other in [self.running[name] for name in state.co_located]:
            inherited |= set(other.devices)
            self._set(now, other, other.devices, None)
            actions.append(ReallocateJob(other.id, other.devices))
        if state.host is None:
            self.placement.give_back(device for device in state.devices if device not in inherited)
        self._set(now, state, (), None)
        return actions

    def lose(self, now: float, devices: Iterable[str]) -> list[Action]:
        """Take lost devices from the jobs that had them; one with fewer than its minimum left waits."""
        gone = set(devices)
        self.placement.lose(self.placement.in_order(gone))
        actions: list[Action] = []
        for state in list(self.running.values()):
            if not gone.isdisjoint(state.devices):
                left = tuple(device for device in state.devices if device not in gone)
                if len(left) < state.job.min and state.host is None and not state.co_located:
                    self.placement.give_back(left)
                    left = ()
                action = self._change(now, state, left, state.host)
                if action is not None:
                    actions.append(action)
        return actions

    def _free_surplus(self, state: ScheduledJob, grant: Grant) -> list[str]:
        """Give back what the job has beyond the grant; return what it keeps."""
        if state.host is not None or not state.devices:
            return []  # a job beside another owns nothing
        if not grant.counts:
            self.placement.give_back(state.devices)
            return []
        surplus = _surplus(state.counts, grant, self.placement.machine_sizes)
        leaving: set[str] = set()
        for device_type, count in surplus.items():
            leaving.update(self.placement.to_release(state.devices, device_type, count))
        self.placement.give_back(self.placement.in_order(leaving))
        return [device for device in state.devices if device not in leaving]

    def _fill(self, state: ScheduledJob, grant: Grant, kept: list[str]) -> tuple[str, ...]:
        """What the job keeps, and free devices up to the grant."""
        devices = list(kept)
        for device_type, count in grant.counts.items():
            if device_type == ANY:
                types = self._types_for(state, kept)
                devices += self._take_any(state, types, count - len(devices), kept)
            else:
                have = sum(self.placement.type_of(device) == device_type for device in kept)
                devices += self._take(state, device_type, count - have, kept)
        if len(devices) < state.job.min and not state.co_located:
            self.placement.give_back(devices)  # of the types that it can use, too few are free
            return ()
        return self.placement.in_order(devices) if len(devices) > 1 else tuple(devices)

    def _take(self, state: ScheduledJob, device_type: str, count: int, near: Sequence[str]) -> list[str]:
        free = self.placement.free.get(device_type, 0)
        if count > free:
            raise PolicyError(
                f"the policy granted job {state.id} {count} more devices of type {device_type}, but {free} are free"
            )
        return self.placement.take(device_type, count, near) if count > 0 else []

    def _take_any(self, state: ScheduledJob, types: Sequence[str], count: int, near: Sequence[str]) -> list[str]:
        """As many as are free of types that the job can use: a policy that only counts cannot know better."""
        free = sum(self.placement.free.values())
        if count > free:
            raise PolicyError(f"the policy granted job {state.id} {count} more devices, but {free} are free")
        taken: list[str] = []
        for device_type in types:
            more = min(count - len(taken), self.placement.free[device_type])
            taken += self._take(state, device_type, more, near)
        return taken

    def _types_for(self, state: ScheduledJob, kept: Sequence[str]) -> list[str]:
        """Types that the job can use: first those it has, then in the cluster's order."""
        if len(self.placement.machine_sizes) == 1:
            return list(self.placement.machine_sizes)
        have = self.placement.counts(kept)
        usable = [name for name in self.placement.machine_sizes if self._throughput.usable(state.job, name)]
        return sorted(usable, key=lambda name: name not in have)

    def _seats(self, state: ScheduledJob, grant: Grant) -> tuple[str, ...]:
        """Devices of the host that no other job is on beside it."""
        host = self.running.get(grant.beside or "")
        if host is None or host.host is not None or host is state:
            raise PolicyError(f"the policy put job {state.id} beside {grant.beside}, which has no devices of its own")
        taken = {device for name in host.co_located if name != state.id for device in self.running[name].devices}
        seats = [device for device in host.devices if device not in taken]
        count = sum(grant.counts.values())
        if count > len(seats):
            raise PolicyError(
                f"the policy put job {state.id} on {count} devices of job {host.id}, "
                f"of which {len(seats)} can be shared"
            )
        return tuple(seats[:count])

    def _change(self, now: float, state: ScheduledJob, devices: tuple[str, ...], host: str | None) -> Action | None:
        if devices == state.devices and host == state.host:
            return None
        if not devices:
            return self._suspend(now, state)
        was_running, resumed = bool(state.devices), state.started_seconds is not None
        self._set(now, state, devices, host)
        if was_running:
            return ReallocateJob(state.id, devices, restart=self._restarts, host=host)
        return StartJob(state.id, devices, resumed=resumed, host=host)

    def _suspend(self, now: float, state: ScheduledJob) -> Action:
        self._set(now, state, (), None)
        return SuspendJob(state.id)

    def _set(self, now: float, state: ScheduledJob, devices: tuple[str, ...], host: str | None) -> None:
        if state.devices:
            self.lacking -= max(0, state.job.demand - state.allocation)
        self._leave_host(state)
        state.change(now, devices, self.placement.counts(devices), host)
        if host is not None:
            self.running[host].co_located += (state.id,)
        if devices:
            self.lacking += max(0, state.job.demand - state.allocation)
            self.running[state.id] = state
        else:
            state.co_located = ()
            self.running.pop(state.id, None)

    def _leave_host(self, state: ScheduledJob) -> None:
        """Its host has room for another job."""
        if state.host is not None and state.host in self.running:
            host = self.running[state.host]
            host.co_located = tuple(name for name in host.co_located if name != state.id)


def _surplus(counts: Mapping[str, int], grant: Grant, types: Mapping[str, object]) -> dict[str, int]:
    """How many devices of each type go beyond a grant."""
    if grant.beside is not None:
        return dict(counts)
    if ANY not in grant.counts:
        return {name: count - grant.counts.get(name, 0) for name, count in counts.items()}
    surplus, left = {}, sum(counts.values()) - grant.counts[ANY]
    for name in reversed(list(types)):  # the types that are given out last go first
        surplus[name] = max(0, min(left, counts.get(name, 0)))
        left -= surplus[name]
    return surplus
