"""The mapping of one job while it runs: given by hand, even, or by the speeds of its devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from virtualflow.core.balance import Speeds, balanced
from virtualflow.core.generation import Generation
from virtualflow.core.mapping import DeviceId, Mapping, first_mapping, rebalance
from virtualflow.errors import MappingError


@dataclass(slots=True)
class JobMapping:
    """Which device runs which virtual nodes now, and which would after a change of devices.

    *owners* is a mapping given by hand, for the job's *first_devices*; *speeds* are those of devices that are not all
    alike.
    """

    first_devices: tuple[DeviceId, ...]
    owners: tuple[int, ...] | None = None
    speeds: Speeds | None = None
    current: Mapping | None = None  # None until the number of virtual nodes is known
    node_sizes: tuple[int, ...] = ()
    is_awaited: bool = False  # the workers wait for one by speed, before their first step

    def begin(self, node_sizes: tuple[int, ...], devices: Sequence[DeviceId]) -> None:
        """The sizes of the virtual nodes are known, and *devices* still run."""
        self.current = first_mapping(self.owners, len(node_sizes), self.first_devices, devices)
        self.node_sizes = node_sizes
        self.is_awaited = self.speeds is not None and self.owners is None

    def take_over(self, generation: Generation, node_sizes: tuple[int, ...]) -> None:
        """The job runs already, in *generation*."""
        self.begin(node_sizes, generation.devices)
        if generation.owners is not None:
            self.current, self.is_awaited = Mapping(generation.owners), False

    def on(self, devices: Sequence[DeviceId]) -> Mapping:
        """The mapping that the job would have on *devices*."""
        assert self.current is not None
        if self.speeds is None:
            return rebalance(self.current, devices)
        return balanced(self.current, devices, self.node_sizes, self.speeds)

    def check(self, devices: Sequence[DeviceId]) -> None:
        """Raise MappingError if there are more *devices* than virtual nodes, as far as their number is known."""
        if self.current is not None and len(devices) > self.current.virtual_nodes:
            raise MappingError(
                f"the job has {self.current.virtual_nodes} virtual nodes, so it can use at most that many devices, "
                f"not {len(devices)}"
            )

    def check_one_more(self, devices: Sequence[DeviceId]) -> None:
        """Raise MappingError if another device beside *devices* would have no virtual node."""
        if self.current is not None and len(devices) >= self.current.virtual_nodes:
            raise MappingError(
                f"the job has {self.current.virtual_nodes} virtual nodes and {len(devices)} devices, so another "
                "device would have no virtual node"
            )
