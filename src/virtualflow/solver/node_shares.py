"""The solver's words: a plan, its shares, and devices of one type at one node size."""

from __future__ import annotations

from dataclasses import dataclass

from virtualflow.core.devices import Pool

SLACK = 1e-9  # what rounding may hide: of a virtual node, of a step


@dataclass(frozen=True, slots=True)
class Share:
    """*count* devices of one type, each with *virtual_nodes* virtual nodes of *node_size* examples."""

    device_type: str
    count: int
    virtual_nodes: int  # on each device
    node_size: int

    @property
    def examples(self) -> int:
        return self.count * self.virtual_nodes * self.node_size


@dataclass(frozen=True, slots=True)
class Plan:
    """What runs where, and how long a step takes."""

    shares: tuple[Share, ...]
    compute_seconds: float  # of the slowest device, with its update
    communication_seconds: float
    guessed: tuple[str, ...] = ()  # types whose time at this node size was not measured

    @property
    def step_seconds(self) -> float:
        return self.compute_seconds + self.communication_seconds

    @property
    def batch_size(self) -> int:
        return sum(share.examples for share in self.shares)

    @property
    def virtual_nodes(self) -> int:
        return sum(share.count * share.virtual_nodes for share in self.shares)

    @property
    def devices(self) -> int:
        return sum(share.count for share in self.shares)

    @property
    def examples_per_second(self) -> float:
        return self.batch_size / self.step_seconds

    @property
    def used(self) -> tuple[tuple[str, int], ...]:
        """Devices by type."""
        counts: dict[str, int] = {}
        for share in self.shares:
            counts[share.device_type] = counts.get(share.device_type, 0) + share.count
        return tuple(counts.items())

    @property
    def types(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(share.device_type for share in self.shares))


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Devices of one type at one node size."""

    pool: Pool
    node_size: int
    seconds: float  # of one virtual node
    update: float
    alike: tuple[tuple[int, int], ...] = ()  # machines by size: the size, and how many have it

    def fits(self, limit: float) -> int:
        """How many virtual nodes a device finishes within *limit*."""
        return max(0, int((limit - self.update) / self.seconds + SLACK))

    def time(self, virtual_nodes: int) -> float:
        return virtual_nodes * self.seconds + self.update


def evenly(group: DeviceGroup, count: int, total: int) -> list[Share]:
    """*total* virtual nodes on *count* devices of one type, which differ by one at most."""
    if count == 0:
        return []
    fewest, more = divmod(total, count)
    parts = [(more, fewest + 1), (count - more, fewest)]
    return [
        Share(group.pool.device_type, number, nodes, group.node_size) for number, nodes in parts if number and nodes
    ]
