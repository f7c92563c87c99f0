"""The version of a job's membership, as the coordinator publishes it to every worker."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from virtualflow.core.mapping import DeviceId


class Cause(StrEnum):
    """Why there is a new generation."""

    START = "start"
    RESIZE = "resize"
    REMAP = "remap"  # the same workers, with other virtual nodes
    LOSS = "loss"
    STOP = "stop"
    COORDINATOR_LOST = "coordinator lost"  # made by a worker that goes on alone; never published


@dataclass(frozen=True, slots=True)
class Generation:
    """One version of the membership."""

    number: int
    cause: Cause
    devices: tuple[DeviceId, ...]  # in the order of their ranks; the first one's worker is the lead
    owners: tuple[DeviceId, ...] | None = None  # the mapping, once the number of virtual nodes is known
    joining: tuple[DeviceId, ...] = ()
    leaving: tuple[DeviceId, ...] = ()
    sender: DeviceId | None = None  # who gives the job's state to those who join

    def successor(
        self,
        number: int,
        cause: Cause,
        devices: tuple[DeviceId, ...],
        owners: tuple[DeviceId, ...] | None = None,
        joining: tuple[DeviceId, ...] = (),
    ) -> Generation:
        """The generation of *devices* after this one. A worker that stays sends the state, or else one that leaves."""
        those_after = set(devices)
        leaving = tuple(device for device in self.devices if device not in those_after)
        staying = [device for device in self.devices if device in those_after]
        sender = (staying or self.devices)[0] if joining else None
        return Generation(number, cause, devices, owners, joining, leaving, sender)

    def group(self, name: str) -> tuple[DeviceId, ...]:
        """Who forms the group of that name: all of this generation, or those who hand the state over in it."""
        if name == self.group_name:
            return self.devices
        if name == self.handover_name and self.sender is not None:
            return (self.sender, *self.joining)
        return ()

    @property
    def group_name(self) -> str:
        return f"generation/{self.number}"

    @property
    def handover_name(self) -> str:
        return f"handover/{self.number}"
