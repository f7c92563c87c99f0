"""Workers on their way into a job: being started, waiting for the job's state, or no longer wanted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from virtualflow.core.mapping import DeviceId
from virtualflow.core.roster_actions import KillWorker, RosterAction, StartWorker
from virtualflow.core.standing import JobStanding


@dataclass(slots=True)
class Joiners:
    """A joiner starts, then waits until a generation includes it. One that is dismissed is killed on purpose."""

    starting: set[DeviceId] = field(default_factory=set)
    waiting: set[DeviceId] = field(default_factory=set)
    waiting_since: float = 0.0  # when the first of those who wait now began to
    _dismissed: set[DeviceId] = field(default_factory=set)

    @property
    def all(self) -> set[DeviceId]:
        return self.starting | self.waiting

    def start(self, devices: Iterable[DeviceId]) -> list[RosterAction]:
        """Have workers started for *devices*."""
        new = list(devices)
        self.starting |= set(new)
        self._dismissed -= set(new)
        return [StartWorker(device) for device in new]

    def is_ready(self, device: DeviceId, now: float) -> None:
        """A joiner has built its model, and waits from *now* on."""
        self.starting.discard(device)
        if not self.waiting:
            self.waiting_since = now
        self.waiting.add(device)

    def take_over(self, job: JobStanding, now: float) -> list[RosterAction]:
        """Go on with the joiners of a job whose coordinator has died, but for those that it was to give the state."""
        for device, standing in job.joiners.items():
            self.starting.add(device)
            if standing.is_ready:
                self.is_ready(device, now)
        return self.dismiss(job.interrupted)

    def admit(self, devices: Iterable[DeviceId]) -> None:
        """These joiners are part of a published generation."""
        self.waiting -= set(devices)

    def dismiss(self, devices: Iterable[DeviceId]) -> list[RosterAction]:
        """Have joiners killed that are of no use any more; their end is no loss."""
        unused = sorted(devices)
        self._dismissed |= set(unused)
        self.waiting -= set(unused)
        self.starting -= set(unused)
        return [KillWorker(device) for device in unused]

    def remove(self, device: DeviceId) -> bool:
        """A worker's process has ended; return whether it was a joiner that had been dismissed."""
        self.starting.discard(device)
        self.waiting.discard(device)
        was_dismissed = device in self._dismissed
        self._dismissed.discard(device)
        return was_dismissed
