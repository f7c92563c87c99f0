"""Who belongs to a job, and who should: one door, no I/O. An event in, a list of actions out.

The coordinator feeds it what happens to workers and carries out what it says. Time comes in as an argument.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from virtualflow.core.backoff import BackOff
from virtualflow.core.balance import Speeds, balanced
from virtualflow.core.generation import Generation
from virtualflow.core.mapping import DeviceId, Mapping, first_mapping, rebalance
from virtualflow.errors import MappingError


@dataclass(frozen=True, slots=True)
class Start:
    """Start a worker that joins the running job."""

    device: DeviceId


@dataclass(frozen=True, slots=True)
class Kill:
    device: DeviceId


@dataclass(frozen=True, slots=True)
class Publish:
    """Tell every worker of a new generation."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class Release:
    """Let a worker that leaves go: the others no longer need it."""

    device: DeviceId


@dataclass(frozen=True, slots=True)
class Finish:
    """Every worker has ended its script."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The job can't go on."""

    reason: str


Action = Start | Kill | Publish | Release | Finish | GiveUp


@dataclass(slots=True)
class Roster:
    """The membership of one job."""

    devices: tuple[DeviceId, ...]
    owners: tuple[int, ...] | None = None
    speeds: Speeds | None = None  # of the devices, if they are not all alike
    replace_lost: bool = True
    patience_seconds: float = 30.0
    generation: Generation = field(init=False)
    pending: Generation | None = None  # published, and not yet formed by all
    target: tuple[DeviceId, ...] = ()
    node_sizes: tuple[int, ...] = ()
    mapping: Mapping | None = None
    warm: set[DeviceId] = field(default_factory=set)  # started, and waiting to be let in
    guests: set[DeviceId] = field(default_factory=set)  # started elsewhere
    starting: set[DeviceId] = field(default_factory=set)
    noticed: set[DeviceId] = field(default_factory=set)  # told to go from outside: their end is no failure
    noticed_at: float = 0.0
    dismissed: set[DeviceId] = field(default_factory=set)  # killed on purpose: their end is no loss
    holding: set[DeviceId] = field(default_factory=set)  # joiners that have the state
    formed: set[DeviceId] = field(default_factory=set)
    done: set[DeviceId] = field(default_factory=set)
    lost_at: dict[DeviceId, float] = field(default_factory=dict)  # who has reported a lost peer, and when
    told_of_loss: int = 0  # the newest generation that was published because of a loss
    joined_at: dict[DeviceId, float] = field(default_factory=dict)
    warm_since: float = 0.0  # when the first of those who wait to be let in began to
    back_off: BackOff = field(default_factory=BackOff)
    closed: bool = False  # nobody can join any more
    stopping: bool = False
    told_to_stop: int = -1  # the newest generation that was told to stop
    numbers: int = 0
    owes_mapping: bool = False  # workers wait for one by speed
    resizes: int = 0
    remaps: int = 0
    failures: int = 0

    def __post_init__(self) -> None:
        self.generation = Generation(0, "start", self.devices)
        self.target = self.devices
        self.joined_at = dict.fromkeys(self.devices, -math.inf)

    @property
    def members(self) -> tuple[DeviceId, ...]:
        """Those who hold the job's state now, and take part or are about to."""
        if self.pending is None:
            return self.generation.devices
        return (*self.generation.devices, *(d for d in self.pending.joining if d in self.holding))

    def members_of(self, group: str) -> tuple[DeviceId, ...]:
        """Who forms a group now: ``generation/N``, or ``handover/N`` for those who pass the state on in it."""
        current = self.pending or self.generation
        if group == f"generation/{current.number}":
            return current.devices
        if group == f"handover/{current.number}" and current.sender is not None:
            return (current.sender, *current.joining)
        return ()

    @property
    def _late_seconds(self) -> float:
        """Between the first report of a broken group and the last one that is still believable."""
        return max(2.0, self.patience_seconds / 10)

    @property
    def is_settled(self) -> bool:
        """Whether the membership is what is wanted."""
        return self.pending is None and set(self.generation.devices) == set(self.target)

    def sizes_known(self, node_sizes: Sequence[int]) -> list[Action]:
        """The first Trainer was made."""
        if self.mapping is not None:
            return []
        count = len(node_sizes)
        self.node_sizes = tuple(node_sizes)
        self.mapping = first_mapping(self.owners, count, self.devices, self.generation.devices)
        self.target = self.target[:count]  # more may have been asked for before anybody knew
        self.owes_mapping = self.speeds is not None and self.owners is None
        return self._first_mapping() if self.pending is None else []

    def _first_mapping(self) -> list[Action]:
        """By speed: the workers wait for it before their first step."""
        if not self.owes_mapping:
            return []
        self.owes_mapping = False
        return self.remap(self._mapped(self.generation.devices))

    def remap(self, mapping: Mapping) -> list[Action]:
        """Move virtual nodes among the same workers, which forms no new group."""
        if self.pending is not None or self.done or self.stopping or not self._is_for(mapping):
            return []
        self.numbers += 1
        self.pending = Generation(self.numbers, "remap", self.generation.devices, mapping.devices)
        self.formed, self.holding = set(), set()
        return [Publish(self.pending)]

    def _is_for(self, mapping: Mapping) -> bool:
        return set(mapping.devices) == set(self.generation.devices)

    def _mapped(self, devices: tuple[DeviceId, ...]) -> Mapping:
        assert self.mapping is not None
        if self.speeds is None:
            return rebalance(self.mapping, devices)
        return balanced(self.mapping, devices, self.node_sizes, self.speeds)

    def resize(self, devices: Sequence[DeviceId], now: float) -> list[Action]:
        """Another set of devices is wanted. The last request wins."""
        if not devices:
            raise MappingError("a job needs at least one device")
        if self.mapping is not None and len(devices) > self.mapping.virtual_nodes:
            raise MappingError(
                f"the job has {self.mapping.virtual_nodes} virtual nodes, so it can use at most that many devices, not "
                f"{len(devices)}"
            )
        if self.closed and not set(devices) <= set(self.generation.devices):
            raise MappingError(CLOSED)
        self.target = tuple(devices)
        self.back_off.losses = 0
        return self._towards_target(now)

    def shrink(self, count: int, now: float) -> list[Action]:
        """The job itself wants to go on with its first *count* devices, and with nobody new."""
        return [*self.close(), *self.resize(self.generation.devices[:count], now)]

    def offer(self, device: DeviceId) -> None:
        """A worker that was started elsewhere wants to take part; it will be ready."""
        if self.mapping is not None and len(self.target) >= self.mapping.virtual_nodes:
            raise MappingError(
                f"the job has {self.mapping.virtual_nodes} virtual nodes and {len(self.target)} devices: there is "
                "nothing left for another one to do"
            )
        if self.closed:
            raise MappingError(CLOSED)
        self.target = (*self.target, device)
        self.guests.add(device)
        self.starting.add(device)

    def close(self) -> list[Action]:
        """Whoever joins from now on would run the script into a loop that the job has left behind."""
        self.closed = True
        self.target = tuple(d for d in self.target if d in self.generation.devices) or self.generation.devices
        late = self.pending.joining if self.pending is not None else ()
        return [*self._dismiss(self.warm | self.starting), *(Kill(d) for d in late)]

    def withdraw(self, device: DeviceId) -> None:
        """A device that can't be had again: only whoever started its worker could."""
        self.target = tuple(d for d in self.target if d != device) or self.generation.devices

    def ready(self, device: DeviceId, now: float) -> list[Action]:
        """A worker that joins has built its model and waits."""
        self.starting.discard(device)
        if not self.warm:
            self.warm_since = now
        self.warm.add(device)
        return self._towards_target(now)

    def postpone(self, device: DeviceId, until: float) -> None:
        """A worker could not be started, for no fault of its own: it is not tried again before then."""
        self.starting.discard(device)
        self.back_off.not_before = max(self.back_off.not_before, until)

    def holds_state(self, device: DeviceId) -> None:
        self.holding.add(device)

    def has_formed(self, device: DeviceId, number: int, now: float) -> list[Action]:
        """A worker is in the group of generation *number*."""
        if self.pending is None or self.pending.number != number:
            return []
        self.formed.add(device)
        if not self.formed >= set(self.pending.devices):
            return []
        before, self.generation, self.pending = self.generation, self.pending, None
        self.lost_at.clear()
        self.remaps += self.generation.cause == "remap"
        if self.generation.cause == "resize":
            self.resizes += 1
            self.joined_at |= dict.fromkeys(self.generation.joining, now)
        if self.generation.owners is not None:
            self.mapping = Mapping(self.generation.owners)
        actions: list[Action] = [Release(d) for d in before.devices if d not in self.generation.devices]
        return actions + self._first_mapping() + self._towards_target(now)

    def leaves(self, device: DeviceId, now: float) -> list[Action]:
        """A worker was told to go (a preemption): it leaves at the next boundary."""
        others = tuple(d for d in self.target if d != device)
        if not others:
            return self.stop(now)  # nobody else could hold the state
        self.target = others
        self.noticed.add(device)
        self.noticed_at = now
        return self._towards_target(now)

    @property
    def _has_notice(self) -> bool:
        """Whether somebody is still there who was told to go."""
        return any(d in self.noticed for d in self.generation.devices)

    def stop(self, now: float) -> list[Action]:
        """All are to end at the same boundary, with a checkpoint. A change that is under way comes first."""
        self.stopping = True
        self.target = self.generation.devices
        return self._towards_target(now)

    def reports_loss(self, device: DeviceId, number: int, now: float) -> list[Action]:
        """A worker's collective has failed in generation *number*: somebody is gone, or late."""
        # If it is a loss that all are told of already, whoever has not noticed may simply be busy.
        if number >= self.told_of_loss:
            self.lost_at.setdefault(device, now)
        return []

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        actions: list[Action] = []
        current = self.pending or self.generation
        if self.lost_at and now - min(self.lost_at.values()) > self._late_seconds:
            # Whoever has not noticed that the group is broken is stopped, or stuck in the user's code.
            silent = [d for d in current.devices if d not in self.lost_at and d not in self.done]
            actions += [Kill(d) for d in silent]
            if not silent:
                actions += self._publish_loss(())
            self.lost_at.clear()
        if self._nobody_takes_over(now):
            return actions + self.stop(now)
        if self.back_off.not_before <= now:
            actions += self._towards_target(now)
        return actions

    def _nobody_takes_over(self, now: float) -> bool:
        """Whether all were told to go, and those who are to come in their place are not there in time."""
        waits = self.pending is None and not self.warm and not self.stopping
        return waits and set(self.generation.devices) <= self.noticed and now - self.noticed_at > self.patience_seconds

    def ended(self, device: DeviceId, now: float) -> list[Action]:
        """A worker's script has come to its end; the worker stays until all have."""
        self.done.add(device)
        if not self.done >= set(self.generation.devices):
            return []
        if self.pending is not None and self.pending.cause == "loss":
            return []
        # A resize that is still under way has no boundary left to happen at.
        joining = set(self.pending.joining) if self.pending is not None else set()
        return [*self._dismiss(self.warm | self.starting | joining), Finish()]

    def gone(self, device: DeviceId, now: float) -> list[Action]:
        """A worker's process is no more."""
        was_warm = device in self.warm
        self.starting.discard(device)
        self.warm.discard(device)
        if device in self.dismissed:
            self.dismissed.discard(device)
            return []
        self.failures += device not in self.noticed
        self.noticed.discard(device)
        if self.closed or not self.replace_lost:
            self.withdraw(device)
        if device not in self.members and device not in (self.pending.devices if self.pending else ()):
            if was_warm or device in self.target:
                self._note_loss(device, now)
            return self._give_up_if_hopeless()
        if device not in self.generation.devices and device not in self.holding:
            self._note_loss(device, now)  # a joiner without the state: the others have all they need
        elif device in self.target:
            self._note_loss(device, now)
        return self._give_up_if_hopeless() or self._publish_loss((device,))

    def _note_loss(self, device: DeviceId, now: float) -> None:
        self.back_off.note(self.joined_at.get(device, now), now)

    def _give_up_if_hopeless(self) -> list[Action]:
        if self.back_off.is_hopeless:
            return [
                GiveUp(
                    f"{self.back_off.losses} workers were lost in a row. Something kills every worker that this job "
                    "starts: look at the script, and at the memory of the machine."
                )
            ]
        return []

    def _publish_loss(self, lost: Sequence[DeviceId]) -> list[Action]:
        """Go on without *lost*, with all who hold the state."""
        survivors = tuple(d for d in self.members if d not in lost)
        if not survivors:
            return [GiveUp("all workers were lost")]
        joining = self.pending.joining if self.pending is not None else ()
        actions = self._dismiss(d for d in joining if d not in self.holding and d not in lost)
        surplus = self._surplus(survivors)
        survivors = tuple(d for d in survivors if d not in surplus)
        self.generation = replace(self.generation, devices=survivors)
        self.done &= set(survivors)
        generation = self._next("loss", survivors)
        self.told_of_loss = generation.number
        return [*actions, *(Release(d) for d in surplus), Publish(generation)]

    def _surplus(self, survivors: Sequence[DeviceId]) -> list[DeviceId]:
        """Those who were to leave, as far as there are more *survivors* than virtual nodes with those who join."""
        if self.mapping is None or self.pending is None or len(survivors) <= self.mapping.virtual_nodes:
            return []
        leaving = [d for d in survivors if d not in self.pending.devices]
        return leaving[: len(survivors) - self.mapping.virtual_nodes]

    def _dismiss(self, devices: Iterable[DeviceId]) -> list[Action]:
        """Kill workers that join: they are of no use any more."""
        unused = sorted(devices)
        self.dismissed |= set(unused)
        self.warm -= set(unused)
        self.starting -= set(unused)
        return [Kill(d) for d in unused]

    def _publish_stop(self) -> list[Action]:
        if self.told_to_stop == self.generation.number:
            return []
        self.told_to_stop = self.generation.number  # told again after a loss: that generation is another one
        self.numbers += 1
        return [Publish(Generation(self.numbers, "stop", self.generation.devices))]

    def _towards_target(self, now: float) -> list[Action]:
        """What brings the membership nearer to what is wanted. Nothing while a change is under way."""
        if self.pending is not None or self.done or self.mapping is None:
            return []
        present, wanted = self.generation.devices, self.target
        if self.stopping:
            return self._dismiss(self.warm | self.starting) + self._publish_stop()
        actions = self._dismiss(d for d in self.warm | self.starting if d not in wanted)
        missing = [d for d in wanted if d not in present and d not in self.warm and d not in self.starting]
        if missing and now >= self.back_off.not_before:
            actions += self._start(missing)
            missing = []
        if self.starting or missing:
            hurry = self._has_notice and any(d in wanted for d in present)
            if not hurry and (not self.warm or now - self.warm_since < self.patience_seconds):
                return actions  # train on until all who join are warm
            # Who is late, for want of a free device perhaps, comes later; who was told to go can't wait for that.
            wanted = tuple(d for d in wanted if d in present or d in self.warm)
        if set(wanted) != set(present):
            stay = tuple(d for d in present if d in wanted)
            joining = tuple(d for d in wanted if d not in present)
            actions.append(Publish(self._next("resize", (*stay, *joining), joining)))
        return actions

    def _start(self, devices: Sequence[DeviceId]) -> list[Action]:
        self.starting |= set(devices)
        self.dismissed -= set(devices)
        self.noticed -= set(devices)
        for device in devices:
            self.joined_at.pop(device, None)
        return [Start(d) for d in devices]

    def _next(self, cause: str, devices: tuple[DeviceId, ...], joining: tuple[DeviceId, ...] = ()) -> Generation:
        self.numbers += 1
        # The lead writes the job's files, so it should be at home as long as anybody is.
        devices = tuple(sorted(devices, key=lambda device: device in self.guests))
        present = self.generation.devices
        leaving = tuple(d for d in present if d not in devices)
        stay = [d for d in present if d in devices]
        sender = (stay or present)[0] if joining else None
        owners = self._mapped(devices).devices if self.mapping is not None else None
        self.pending = Generation(self.numbers, cause, devices, owners, joining, leaving, sender)
        self.formed, self.holding = set(), set()
        self.warm -= set(joining)
        self.lost_at.clear()
        return self.pending


CLOSED = (
    "the job is past the loop of its first Trainer. A worker that joins runs the script from the top, so none can "
    "join a later one; fewer devices are possible"
)
