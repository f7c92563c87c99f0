"""Which device runs which cell: one stage of a model that is cut, for one virtual node. And who holds what of it.

Pipelines, data parallelism, both, interleaved and uneven mixtures are all assignments of one grid, stages down and
virtual nodes across.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from virtualflow.core.mapping import DeviceId
from virtualflow.core.wording import counted
from virtualflow.errors import MappingError

Cell = tuple[int, int]  # a stage and a virtual node


@dataclass(frozen=True, slots=True)
class Cells:
    """``routes[v][s]`` runs stage ``s`` of virtual node ``v``; ``shadows[s]`` hold that stage besides, and run nothing.

    A shadow makes the same updates, so that the stage outlives the device that runs it.
    """

    routes: tuple[tuple[DeviceId, ...], ...]
    shadows: tuple[tuple[DeviceId, ...], ...] = ()

    def __post_init__(self) -> None:
        if not self.routes or not self.routes[0]:
            raise MappingError("a grid of cells needs at least one stage and one virtual node")
        if len({len(route) for route in self.routes}) > 1:
            raise MappingError("every virtual node of a grid passes through the same number of stages")
        if self.shadows and len(self.shadows) != self.stages:
            raise MappingError(f"the grid has {self.stages} stages, and shadows are given for {len(self.shadows)}")

    @classmethod
    def of_rows(cls, rows: Iterable[Sequence[DeviceId]], shadows: Iterable[Sequence[DeviceId]] = ()) -> Cells:
        """The grid as it is drawn and written down: for each stage, the device of each virtual node."""
        return cls(tuple(zip(*rows, strict=True)), tuple(map(tuple, shadows)))

    @property
    def rows(self) -> list[list[DeviceId]]:
        """For each stage, the device of each virtual node."""
        return [[route[stage] for route in self.routes] for stage in range(self.stages)]

    @property
    def stages(self) -> int:
        return len(self.routes[0])

    @property
    def virtual_nodes(self) -> int:
        return len(self.routes)

    @property
    def devices(self) -> tuple[DeviceId, ...]:
        """All that run or hold something, in the order in which the grid names them."""
        named = (device for route in (*self.routes, *self.shadows) for device in route)
        return tuple(dict.fromkeys(named))

    def runners(self, stage: int) -> tuple[DeviceId, ...]:
        """The devices that run *stage* for some virtual node."""
        return tuple(dict.fromkeys(route[stage] for route in self.routes))

    def holders(self, stage: int) -> tuple[DeviceId, ...]:
        """The devices that hold *stage*: those that run it, then its shadows."""
        return tuple(dict.fromkeys((*self.runners(stage), *(self.shadows[stage] if self.shadows else ()))))

    def stages_of(self, device: DeviceId) -> tuple[int, ...]:
        """The stages that *device* holds."""
        return tuple(stage for stage in range(self.stages) if device in self.holders(stage))

    def cells_of(self, device: DeviceId) -> tuple[Cell, ...]:
        """The cells that *device* runs."""
        return tuple(
            (stage, node)
            for node, route in enumerate(self.routes)
            for stage, owner in enumerate(route)
            if owner == device
        )

    def nodes_of(self, device: DeviceId, stages: Iterable[int]) -> tuple[int, ...]:
        """The virtual nodes of which *device* runs any of *stages*."""
        wanted = tuple(stages)
        return tuple(node for node, route in enumerate(self.routes) if any(route[s] == device for s in wanted))

    def at_risk(self) -> tuple[int, ...]:
        """The stages that the death of one device would lose."""
        return tuple(stage for stage in range(self.stages) if len(self.holders(stage)) < 2)


def with_copies(cells: Cells, copies: int) -> Cells:
    """*cells* with enough shadows that each stage has at least *copies* holders, or as many as there are devices.

    The devices that hold the fewest stages become shadows.
    """
    bare, shadows = replace(cells, shadows=()), []
    places = {device: place for place, device in enumerate(bare.devices)}
    runners = [bare.runners(stage) for stage in range(bare.stages)]
    held = Counter(device for stage in runners for device in stage)
    for running in runners:
        free = [] if len(running) >= copies else [device for device in places if device not in running]
        chosen = tuple(sorted(free, key=lambda device: (held[device], places[device]))[: max(0, copies - len(running))])
        held.update(chosen)
        shadows.append(chosen)
    return replace(bare, shadows=tuple(shadows))


def pipelines(stages: int, virtual_nodes: int, devices: Sequence[DeviceId]) -> Cells:
    """The grid that a job gets by default: as few pipelines as its stages allow, as long and as even as can be.

    Each device then holds as little of the model as the number of devices allows. A pipeline gets virtual nodes by the
    number of its devices.
    """
    _check_count(stages, virtual_nodes, devices)
    number = max(-(-len(devices) // stages), 1)
    depths = [len(devices) * (place + 1) // number - len(devices) * place // number for place in range(number)]
    routes: list[tuple[DeviceId, ...]] = []
    first = 0
    for place, depth in enumerate(depths):
        line = devices[first : first + depth]
        first += depth
        others = number - place - 1  # pipelines that still come, with a virtual node each at least
        until = min(max(virtual_nodes * first // len(devices), len(routes) + 1), virtual_nodes - others)
        routes += [tuple(line[stage * depth // stages] for stage in range(stages))] * (until - len(routes))
    return Cells(tuple(routes))


def given_cells(rows: Sequence[Sequence[int]], stages: int, virtual_nodes: int, devices: Sequence[DeviceId]) -> Cells:
    """The grid given by hand: for each stage a device's index for each virtual node; one row stands for all stages."""
    rows = list(rows) * stages if len(rows) == 1 else list(rows)
    if len(rows) != stages or any(len(row) != virtual_nodes for row in rows):
        raise MappingError(
            f"the mapping has {counted(len(rows), 'row')} of {', '.join(str(len(row)) for row in rows)}, but "
            f"the job has "
            f"{stages} stages and {virtual_nodes} virtual nodes. Give a row for each stage, separated by '/', with a "
            "device index for each virtual node."
        )
    named = {owner for row in rows for owner in row}
    if unknown := named - set(range(len(devices))):
        raise MappingError(f"the mapping names device {max(unknown)}; the job has devices 0 to {len(devices) - 1}.")
    if idle := set(range(len(devices))) - named:
        raise MappingError(f"the mapping gives device {min(idle)} nothing to do: each device needs a cell.")
    return Cells(tuple(tuple(devices[row[node]] for row in rows) for node in range(virtual_nodes)))


def _check_count(stages: int, virtual_nodes: int, devices: Sequence[DeviceId]) -> None:
    if not devices:
        raise MappingError("a grid of cells needs at least one device")
    number = -(-len(devices) // stages)
    if number > virtual_nodes:
        raise MappingError(
            f"cannot map {stages} stages of {virtual_nodes} virtual nodes onto {len(devices)} devices: use at most "
            f"{stages * virtual_nodes}."
        )
