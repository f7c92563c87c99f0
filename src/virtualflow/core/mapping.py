"""Which device runs which virtual nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from virtualflow.errors import MappingError

DeviceId = str


@dataclass(frozen=True, slots=True)
class Mapping:
    """``devices[v]`` runs virtual node ``v``."""

    devices: tuple[DeviceId, ...]

    def __post_init__(self) -> None:
        if not self.devices:
            raise MappingError("a mapping needs at least one virtual node")

    def nodes_of(self, device: DeviceId) -> tuple[int, ...]:
        """The virtual nodes of *device*, in the order in which it runs them."""
        return tuple(v for v, owner in enumerate(self.devices) if owner == device)

    def by_device(self) -> dict[DeviceId, tuple[int, ...]]:
        """The virtual nodes of each device."""
        nodes: dict[DeviceId, list[int]] = {}
        for node, owner in enumerate(self.devices):
            nodes.setdefault(owner, []).append(node)
        return {device: tuple(own) for device, own in nodes.items()}

    @property
    def virtual_nodes(self) -> int:
        return len(self.devices)

    @property
    def waves(self) -> int:
        """How many virtual nodes the busiest device runs one after another."""
        return max(Counter(self.devices).values())


def spread(virtual_nodes: int, devices: Sequence[DeviceId]) -> Mapping:
    """Spread virtual nodes as evenly as possible, in contiguous blocks."""
    _check_every_device_gets_one(virtual_nodes, devices)
    return Mapping(tuple(devices[v * len(devices) // virtual_nodes] for v in range(virtual_nodes)))


def rebalance(mapping: Mapping, devices: Sequence[DeviceId]) -> Mapping:
    """Spread *mapping* evenly over other *devices*, moving as few virtual nodes as that allows."""
    _check_every_device_gets_one(mapping.virtual_nodes, devices)
    share, larger = divmod(mapping.virtual_nodes, len(devices))
    before = mapping.by_device()
    has = {device: before.get(device, ()) for device in devices}
    # The larger shares go to those that have the most already, and among equals to the first.
    by_load = sorted(devices, key=lambda device: -len(has[device]))
    target = {device: share + (place < larger) for place, device in enumerate(by_load)}
    owner = {node: device for device in devices for node in has[device][: target[device]]}
    homeless = (node for node in range(mapping.virtual_nodes) if node not in owner)
    for device in devices:
        for _ in range(target[device] - min(target[device], len(has[device]))):
            owner[next(homeless)] = device
    return Mapping(tuple(owner[node] for node in range(mapping.virtual_nodes)))


def assign(owners: Sequence[int], virtual_nodes: int, devices: Sequence[DeviceId]) -> Mapping:
    """The mapping given by hand: virtual node ``v`` on the device with index ``owners[v]``."""
    _check_every_device_gets_one(virtual_nodes, devices)
    if len(owners) != virtual_nodes:
        raise MappingError(
            f"the mapping names {len(owners)} virtual nodes, but the job has {virtual_nodes}. "
            "Give one device index for each virtual node."
        )
    missing = set(range(len(devices))) - set(owners)
    unknown = set(owners) - set(range(len(devices)))
    if missing or unknown:
        wrong = f"gives device {min(missing)} nothing to do" if missing else f"names device {max(unknown)}"
        raise MappingError(
            f"the mapping {wrong}; the job has devices 0 to {len(devices) - 1}, and each needs a virtual node."
        )
    return Mapping(tuple(devices[owner] for owner in owners))


def first_mapping(
    owners: Sequence[int] | None, virtual_nodes: int, started: Sequence[DeviceId], devices: Sequence[DeviceId]
) -> Mapping:
    """The mapping that a job begins with: given by hand or even. *devices* are those of *started* that still run."""
    if owners is None:
        return spread(virtual_nodes, devices)
    given = assign(owners, virtual_nodes, started)
    return given if len(devices) == len(started) else rebalance(given, devices)


def _check_every_device_gets_one(virtual_nodes: int, devices: Sequence[DeviceId]) -> None:
    if not devices:
        raise MappingError("a mapping needs at least one device")
    if len(devices) > virtual_nodes:
        raise MappingError(
            f"cannot map {virtual_nodes} virtual nodes onto {len(devices)} devices: each device needs at least "
            f"one. Use at most {virtual_nodes} devices, or start the job with more virtual nodes."
        )
