"""Which concrete devices: few machines for a job, and it keeps those it has.

Free devices are kept by machine, and machines by how many of them are free, so that finding room costs the same in
small and in large clusters.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from typing import TypeVar

from virtualflow.core.devices import Pool, names_of, type_of
from virtualflow.errors import ConfigError

Item = TypeVar("Item")


class Placement:
    """The devices of a cluster: who is free, and on which machine each one is."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        self.machine_sizes: dict[str, tuple[int, ...]] = {}  # the largest first
        self._machine: dict[str, int] = {}  # device -> machine
        self._place: dict[str, int] = {}  # device -> position, for a stable order
        self._from_the_end: dict[str, int] = {}  # device -> minus its position
        self._type: list[str] = []  # machine -> device type
        self._free: list[list[str]] = []  # machine -> free devices, the first one last
        self._room: list[int] = []  # machine -> how many are free
        self._free_machines: dict[str, _FreeMachines] = {}
        self.free: dict[str, int] = {}
        self.capacity: dict[str, int] = {}
        self.lost: set[str] = set()
        names = iter(names_of(pools))
        for pool in pools:
            for size in pool.machines:
                self._add_machine(pool.device_type, [next(names) for _ in range(size)])
            self.machine_sizes[pool.device_type] = pool.machines

    def _add_machine(self, device_type: str, devices: list[str]) -> None:
        if device_type not in self._free_machines:
            self._free_machines[device_type] = _FreeMachines()
            self.free[device_type] = self.capacity[device_type] = 0
            self.machine_sizes[device_type] = ()
        machine, size = len(self._free), len(devices)
        for device in devices:
            self._from_the_end[device] = -len(self._place)
            self._place[device] = len(self._place)
            self._machine[device] = machine
        self._type.append(device_type)
        self._free.append(devices[::-1])
        self._room.append(size)
        self._free_machines[device_type].put(machine, size)
        self.free[device_type] += size
        self.capacity[device_type] += size

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(self._machine)

    @property
    def totals(self) -> dict[str, int]:
        """Devices by type, lost ones too."""
        return {name: sum(sizes) for name, sizes in self.machine_sizes.items()}

    def machine_of(self, device: str) -> int:
        return self._machine[device]

    def type_of(self, device: str) -> str:
        return self._type[self._machine[device]]

    def counts(self, devices: Iterable[str]) -> dict[str, int]:
        return _counted([self._type[self._machine[device]] for device in devices])

    def pools(self, devices: Sequence[str]) -> tuple[Pool, ...]:
        """A job's devices by type and machine, as the solver takes them."""
        if len(devices) == 1:
            return (Pool(self.type_of(devices[0]), (1,)),)
        machines: dict[str, list[int]] = {}
        for machine, count in _counted([self._machine[device] for device in devices]).items():
            machines.setdefault(self._type[machine], []).append(count)
        # In the cluster's order, so that equal placements are equal values.
        return tuple(
            Pool(name, tuple(sorted(machines[name], reverse=True))) for name in self._free_machines if name in machines
        )

    def take(self, device_type: str, count: int, near: Sequence[str] = ()) -> list[str]:
        """Free devices: on machines of *near* first, then on one machine if it can be, else on few."""
        assert count <= self.free[device_type]
        taken: list[str] = []
        if near:
            beside = _counted(m for device in near if self._type[m := self._machine[device]] == device_type)
            for machine, _ in sorted(beside.items(), key=lambda entry: (-entry[1], entry[0])):
                if len(taken) < count and self._free[machine]:
                    taken += self._take_from(machine, count - len(taken))
        while len(taken) < count:
            taken += self._take_from(self._free_machines[device_type].best(count - len(taken)), count - len(taken))
        return taken

    def claim(self, devices: Iterable[str]) -> None:
        """Take just these, which are free."""
        for device in devices:
            machine = self._machine.get(device)
            if machine is None or device not in self._free[machine]:
                raise ConfigError(f"device {device} is not free, or not part of the cluster")
            self._free[machine].remove(device)
            self._move(machine, -1)

    def give_back(self, devices: Iterable[str]) -> None:
        back: dict[int, list[str]] = {}
        for device in devices:
            if device not in self.lost:
                back.setdefault(self._machine[device], []).append(device)
        for machine, names in back.items():
            self._move(machine, len(names))
            # Lowest name first, so that a placement depends on what is free and not on how it came to be.
            for device in names:
                bisect.insort(self._free[machine], device, key=self._from_the_end.__getitem__)

    def to_release(self, devices: Sequence[str], device_type: str, count: int) -> list[str]:
        """Which devices of a type a job gives up: those on the machines where it has the fewest."""
        have = [device for device in devices if self.type_of(device) == device_type]
        if count < len(have):
            fewest = _counted(self._machine[device] for device in have)
            have.sort(key=lambda device: (fewest[self._machine[device]], -self._place[device]))
        return have[: max(0, count)]

    def lose(self, devices: Iterable[str]) -> None:
        """Take devices out of the cluster; those that were in use are given back to no one."""
        for device in devices:
            if device in self.lost:
                continue
            machine = self._machine[device]
            self.lost.add(device)
            self.capacity[self._type[machine]] -= 1
            if device in self._free[machine]:
                self._free[machine].remove(device)
                self._move(machine, -1)

    def join(self, devices: Iterable[str]) -> None:
        """Lost devices are back; unknown ones are a new machine, by type."""
        new: dict[str, list[str]] = {}
        for device in devices:
            if device in self.lost:
                self.lost.remove(device)
                self.capacity[self.type_of(device)] += 1
                self.give_back([device])
            elif device in self._machine:
                raise ConfigError(f"device {device} is not missing from the cluster")
            else:
                new.setdefault(type_of(device), []).append(device)
        for device_type, names in new.items():
            self._add_machine(device_type, names)
            sizes = (*self.machine_sizes[device_type], len(names))
            self.machine_sizes[device_type] = tuple(sorted(sizes, reverse=True))

    def knows(self, device: str) -> bool:
        return device in self._machine

    def in_order(self, devices: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(devices, key=self._place.__getitem__))

    def _take_from(self, machine: int, most: int) -> list[str]:
        devices = self._free[machine]
        count = min(most, len(devices))
        self._move(machine, -count)
        taken = devices[len(devices) - count :][::-1]
        del devices[len(devices) - count :]
        return taken

    def _move(self, machine: int, change: int) -> None:
        """Note that a machine is about to have more or fewer free devices."""
        device_type, room = self._type[machine], self._room[machine]
        self._free_machines[device_type].drop(machine, room)
        self._free_machines[device_type].put(machine, room + change)
        self._room[machine] = room + change
        self.free[device_type] += change


def _counted(items: Iterable[Item]) -> dict[Item, int]:
    """How often each one occurs. For a handful, a `Counter` takes three times as long."""
    counts: dict[Item, int] = {}
    for one in items:
        counts[one] = counts.get(one, 0) + 1
    return counts


class _FreeMachines:
    """Machines of one type by how many of their devices are free."""

    def __init__(self) -> None:
        self._machines: dict[int, dict[int, None]] = {}  # free devices -> machines, in the order they got there
        self._sizes: list[int] = []  # the keys above that have machines, sorted

    def put(self, machine: int, room: int) -> None:
        if room:
            if room not in self._machines:
                self._machines[room] = {}
                bisect.insort(self._sizes, room)
            self._machines[room][machine] = None

    def drop(self, machine: int, room: int) -> None:
        if room:
            del self._machines[room][machine]
            if not self._machines[room]:
                del self._machines[room]
                self._sizes.remove(room)

    def best(self, wanted: int) -> int:
        """The machine that *wanted* devices fill best, or the emptiest if none has that many free."""
        place = bisect.bisect_left(self._sizes, wanted)
        room = self._sizes[min(place, len(self._sizes) - 1)]
        return next(iter(self._machines[room]))
