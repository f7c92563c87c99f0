"""What each worker of a job tells a coordinator that takes over from one that has died: who belongs to the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from virtualflow.core.generation import Generation
from virtualflow.core.mapping import DeviceId


@dataclass(frozen=True, slots=True)
class Standing:
    """How far one worker has come in the membership."""

    generation: Generation  # the newest one that it was about to be in
    has_formed: bool  # whether it is in the group of that generation
    newest: int  # the number of the newest generation that it knows
    holds_state: bool = True  # False for one that joins, and has not received it yet
    is_ready: bool = False  # of one that joins: it waits for the state
    is_invited: bool = False  # of one that joins: it knows a generation that it would be in
    must_stop: bool = False  # it knows that all are to stop
    has_finished: bool = False  # its script has come to its end
    node_sizes: tuple[int, ...] = ()  # empty until its script has made a Trainer


@dataclass(frozen=True, slots=True)
class JobStanding:
    """How far a job has come, by the *standings* of all of its workers that are left."""

    standings: Mapping[DeviceId, Standing]

    @property
    def generation(self) -> Generation | None:
        """The newest generation that a worker has formed; of a job that has formed none, its first one.

        None if no worker that is left holds the job's state.
        """
        formed = [standing.generation for standing in self._with_state.values() if standing.has_formed]
        others = [standing.generation for standing in self._with_state.values()]
        if formed:
            return max(formed, key=lambda generation: generation.number)
        return min(others, key=lambda generation: generation.number, default=None)

    @property
    def survivors(self) -> tuple[DeviceId, ...]:
        """Workers that hold the job's state: those of its generation first, in the order of their ranks."""
        members = self.generation.devices if self.generation is not None else ()
        present = tuple(device for device in members if device in self._with_state)
        return (*present, *(device for device in self._with_state if device not in members))

    @property
    def is_undisturbed(self) -> bool:
        """Whether all workers of the generation are in its group, and no other was published since."""
        generation = self.generation
        return generation is not None and all(
            device in self._with_state
            and self.standings[device].has_formed
            and self.standings[device].newest == self.standings[device].generation.number == generation.number
            for device in generation.devices
        )

    @property
    def joiners(self) -> dict[DeviceId, Standing]:
        """Workers that join, and are in the middle of nothing."""
        return {d: s for d, s in self.standings.items() if not s.holds_state and not s.is_invited}

    @property
    def interrupted(self) -> tuple[DeviceId, ...]:
        """Workers that were about to receive the state: from whom, only the dead coordinator knew."""
        return tuple(d for d, s in self.standings.items() if not s.holds_state and s.is_invited)

    @property
    def newest(self) -> int:
        """The number of the newest generation that any worker knows."""
        return max(standing.newest for standing in self.standings.values())

    @property
    def must_stop(self) -> bool:
        return any(standing.must_stop for standing in self.standings.values())

    @property
    def node_sizes(self) -> tuple[int, ...]:
        return next((s.node_sizes for s in self.standings.values() if s.node_sizes), ())

    @property
    def _with_state(self) -> dict[DeviceId, Standing]:
        return {device: standing for device, standing in self.standings.items() if standing.holds_state}
