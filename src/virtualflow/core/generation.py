"""The version of a job's membership, as the coordinator tells it to every worker."""

from __future__ import annotations

from dataclasses import dataclass

from virtualflow.core.mapping import DeviceId


@dataclass(frozen=True, slots=True)
class Generation:
    """One version of the membership, as every worker hears of it."""

    number: int
    cause: str  # "start", "resize", "remap", "loss" or "stop"
    devices: tuple[DeviceId, ...]  # in the order of their ranks; the first one's worker is the lead
    owners: tuple[DeviceId, ...] | None = None  # the mapping, once the number of virtual nodes is known
    joining: tuple[DeviceId, ...] = ()
    leaving: tuple[DeviceId, ...] = ()
    sender: DeviceId | None = None  # who gives the job's state to those who join
