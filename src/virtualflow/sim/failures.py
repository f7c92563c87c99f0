"""Devices and machines that fail at random and come back: a stream of events, decided by a seed."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from virtualflow.cluster.messages import DevicesJoined, DevicesLost
from virtualflow.cluster.placement import Placement
from virtualflow.core.devices import Pool
from virtualflow.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Failures:
    """How often things break. Rates are per device and per machine, times between failures exponential."""

    device_per_hour: float = 0.0
    machine_per_hour: float = 0.0
    repair_seconds: float = 3600.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.device_per_hour < 0 or self.machine_per_hour < 0 or self.repair_seconds <= 0:
            raise ConfigError("rates of failure must not be negative, and a repair takes some time")

    def events(self, pools: Sequence[Pool], start_seconds: float) -> Iterator[DevicesLost | DevicesJoined]:
        """Without end. What fails is drawn from all; what is broken already cannot break again."""
        placement = Placement(pools)
        devices = placement.devices
        machines: dict[int, list[str]] = {}
        for device in devices:
            machines.setdefault(placement.machine_of(device), []).append(device)
        of_devices = self.device_per_hour / 3600 * len(devices)
        of_machines = self.machine_per_hour / 3600 * len(machines)
        if of_devices + of_machines == 0:
            return
        chance, now = random.Random(self.seed), start_seconds
        broken: set[str] = set()
        repairs: list[tuple[float, int, tuple[str, ...]]] = []
        for number in range(2**62):
            now += chance.expovariate(of_devices + of_machines)
            while repairs and repairs[0][0] <= now:
                seconds, _, repaired = heapq.heappop(repairs)
                broken.difference_update(repaired)
                yield DevicesJoined(seconds, repaired)
            if chance.random() * (of_devices + of_machines) < of_devices:
                hit = [devices[chance.randrange(len(devices))]]
            else:
                hit = machines[chance.randrange(len(machines))]
            lost = tuple(device for device in hit if device not in broken)
            if lost:
                broken.update(lost)
                heapq.heappush(repairs, (now + self.repair_seconds, number, lost))
                yield DevicesLost(now, lost)
