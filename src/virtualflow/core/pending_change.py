"""The change of membership in flight: a published generation that not all of its workers have formed yet."""

from __future__ import annotations

from dataclasses import dataclass, field

from virtualflow.core.generation import Generation
from virtualflow.core.mapping import DeviceId


@dataclass(slots=True)
class PendingChange:
    """A published *generation*, and how far its workers have come."""

    generation: Generation
    _with_state: set[DeviceId] = field(default_factory=set)
    _unformed: set[DeviceId] = field(init=False)

    def __post_init__(self) -> None:
        self._unformed = set(self.generation.devices)

    def has_state(self, device: DeviceId) -> None:
        """A joiner holds the job's state."""
        self._with_state.add(device)

    def has_formed(self, device: DeviceId) -> None:
        """A worker is in the generation's group."""
        self._unformed.discard(device)

    @property
    def is_formed(self) -> bool:
        """Whether every worker of the generation is in its group."""
        return not self._unformed

    @property
    def joiners_with_state(self) -> tuple[DeviceId, ...]:
        return tuple(device for device in self.generation.joining if device in self._with_state)

    @property
    def joiners_without_state(self) -> tuple[DeviceId, ...]:
        return tuple(device for device in self.generation.joining if device not in self._with_state)
