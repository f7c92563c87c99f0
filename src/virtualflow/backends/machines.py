"""A cluster's machines by their resources, and their devices under names that last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from virtualflow.cluster.messages import DevicesJoined, DevicesLost
from virtualflow.core.devices import CPU, Pool, type_of
from virtualflow.errors import LaunchError

GPU = "GPU"
_MODEL = "accelerator_type:"
_NO_DEVICES = ("memory", "object_store_memory")


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine: the cluster's id of it, its address, and what it has, in the cluster's words."""

    id: str
    address: str
    resources: Mapping[str, float]

    @property
    def gpu_type(self) -> str:
        """The type of its GPUs: the model, if the cluster knows it."""
        return next((name.removeprefix(_MODEL) for name in self.resources if name.startswith(_MODEL)), GPU)

    @property
    def devices(self) -> dict[str, int]:
        """How many devices of each type it has: cores, GPUs by their model, and custom resources by their name."""
        counts = Counter[str]()
        for name, amount in self.resources.items():
            if name in _NO_DEVICES or name.startswith((_MODEL, "node:", "bundle_group_")):
                continue
            counts[{"CPU": CPU, "GPU": self.gpu_type}.get(name, name)] += int(amount)
        return {name: count for name, count in sorted(counts.items()) if count}


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """What to ask the cluster for, to have one device."""

    cpus: float = 0.0
    gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)

    @property
    def amounts(self) -> dict[str, float]:
        """All of it by the cluster's names."""
        return {name: amount for name, amount in (("CPU", self.cpus), ("GPU", self.gpus)) if amount} | {
            **self.resources
        }


def request(device_type: str, machines: Sequence[Machine], threads_per_device: int, *, any_gpu: bool) -> DeviceRequest:
    """What one device of a type is in the cluster's words. A core, or several, if no machine knows the type."""
    for machine in machines:
        if "GPU" in machine.resources and device_type == GPU:
            return DeviceRequest(gpus=1)
        if "GPU" in machine.resources and device_type == machine.gpu_type:
            return DeviceRequest(gpus=1, resources={f"{_MODEL}{device_type}": 0.001})
        if device_type != CPU and device_type in machine.devices:
            return DeviceRequest(resources={device_type: 1})
    if device_type == CPU and any_gpu and any("GPU" in machine.resources for machine in machines):
        return DeviceRequest(gpus=1)
    return DeviceRequest(cpus=threads_per_device)


def pools(machines: Iterable[Machine]) -> tuple[Pool, ...]:
    """The devices of all *machines*, by type."""
    counts: dict[str, list[int]] = {}
    for machine in machines:
        for name, count in machine.devices.items():
            counts.setdefault(name, []).append(count)
    return tuple(Pool(name, tuple(sorted(counts[name], reverse=True))) for name in sorted(counts))


def check(
    devices: Sequence[str],
    machines: Sequence[Machine],
    emulated: Iterable[str],
    threads_per_device: int,
    *,
    any_gpu: bool,
) -> None:
    """Raise LaunchError if the cluster does not have all of *devices*. A core stands for an *emulated* type."""
    present = {pool.device_type: pool.count for pool in pools(machines)}
    has = ", ".join(f"{count} {name}" for name, count in present.items()) or "no devices"
    stand_ins = set(emulated)
    for name, count in Counter(type_of(device) for device in devices).items():
        if name != CPU and name not in present and name not in stand_ins:
            raise LaunchError(
                f"the Ray cluster has no device of type {name}: it has {has}. Start its machine with ray start "
                f"--resources '{{\"{name}\": 1}}', or with a GPU of that model."
            )
        wanted = request(name, machines, threads_per_device, any_gpu=any_gpu)
        room = int(min(_amount(machines, resource) // amount for resource, amount in wanted.amounts.items()))
        if count > room:
            raise LaunchError(
                f"the job wants {count} devices of type {name}, and the Ray cluster has {room}: in all it has {has}. "
                "Use fewer devices, or let more machines join the cluster."
            )


def _amount(machines: Iterable[Machine], resource: str) -> float:
    return sum(machine.resources.get(resource, 0.0) for machine in machines)


class DeviceNames:
    """The devices of a cluster whose machines come and go: each has one name for as long as its machine is known."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[str, ...]] = {}  # by machine
        self._taken = Counter[str]()
        self._alive: dict[str, Machine] = {}

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The devices of the machines that are alive, by type."""
        return pools(self._alive.values())

    @property
    def devices(self) -> dict[str, Machine]:
        """The devices of the machines that are alive, each with its machine."""
        return {name: machine for key, machine in self._alive.items() for name in self._named[key]}

    def update(self, machines: Iterable[Machine], seconds: float) -> list[DevicesLost | DevicesJoined]:
        """These are the machines now; return which devices were lost, and which have joined."""
        now = {machine.id: machine for machine in machines}
        lost = [name for key in self._alive if key not in now for name in self._named[key]]
        new = [machine for key, machine in now.items() if key not in self._alive]
        self._name(machine for machine in new if machine.id not in self._named)
        joined = [name for machine in new for name in self._named[machine.id]]
        self._alive = now
        news: list[DevicesLost | DevicesJoined] = []
        if lost:
            news.append(DevicesLost(seconds, tuple(lost)))
        if joined:
            news.append(DevicesJoined(seconds, tuple(joined)))
        return news

    def _name(self, machines: Iterable[Machine]) -> None:
        """By type, the machine with the most of them first: as the devices of pools are named."""
        unnamed = list(machines)
        named: dict[str, list[str]] = {machine.id: [] for machine in unnamed}
        for device_type in dict.fromkeys(name for machine in unnamed for name in machine.devices):
            for machine in sorted(unnamed, key=_fewest_last(device_type)):
                for _ in range(machine.devices.get(device_type, 0)):
                    number = self._taken[device_type]
                    self._taken[device_type] += 1
                    named[machine.id].append(str(number) if device_type == CPU else f"{device_type}:{number}")
        self._named |= {key: tuple(names) for key, names in named.items()}


def _fewest_last(device_type: str) -> Callable[[Machine], int]:
    return lambda machine: -machine.devices.get(device_type, 0)
