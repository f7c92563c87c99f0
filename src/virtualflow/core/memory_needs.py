"""What memory a job needs, and which grid of cells keeps within the memory of its devices.

All are bytes on one device. What is counted is an upper bound for 1F1B; a device that only holds a stage counts like
one that runs it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from virtualflow.core.cell_schedule import flight_limit, segments
from virtualflow.core.cells import Cells, pipelines, with_copies
from virtualflow.core.mapping import DeviceId
from virtualflow.errors import ConfigError


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """*stages*: what a device holds for each stage, with its optimizer and its sums; one is a model that is not cut.

    *node*: the activations of one virtual node, through the whole model. *copies*: how many devices hold each stage.
    """

    stages: tuple[int, ...]
    node: int = 0
    copies: int = 2

    def __post_init__(self) -> None:
        if not self.stages or min(*self.stages, self.node) < 0 or self.copies < 1:
            raise ConfigError(
                f"a job that needs {self.stages} bytes for its stages, {self.node} for a virtual node and "
                f"{self.copies} copies: expected a size for each stage, none below 0, and one copy at least"
            )

    @property
    def is_cut(self) -> bool:
        return len(self.stages) > 1

    @property
    def useful_devices(self) -> int:
        """More devices than these leave no device with less."""
        return len(self.stages) * self.copies if self.is_cut else 1


@dataclass(frozen=True, slots=True)
class Fit:
    """A job fits on *least* to *most* devices, and on *least* of them needs *size* bytes on one."""

    least: int
    most: int
    size: int


def peak(cells: Cells, needs: MemoryNeeds) -> int:
    """What the fullest device of a grid needs."""
    held = Counter[DeviceId]()
    for stage, size in enumerate(needs.stages):
        held.update(dict.fromkeys(cells.holders(stage), size))
    return max(held[device] + _activations(cells, device, needs) for device in cells.devices)


def grid_within(needs: MemoryNeeds, limit: int | None, virtual_nodes: int, devices: Sequence[DeviceId]) -> Cells:
    """The grid that a job gets on *devices*: the usual one, or where *limit* has no room for that, the leanest."""
    grids = _grids(needs, virtual_nodes, devices)
    first = next(grids)
    return first if limit is None or peak(first, needs) <= limit else min((first, *grids), key=lambda g: peak(g, needs))


@lru_cache(maxsize=1024)
def fit(needs: MemoryNeeds, limit: int, virtual_nodes: int, at_least: int, wanted: int) -> Fit | None:
    """The fewest devices, from *at_least* on, that a job fits on; and how many more, up to *wanted*, without a gap.

    None if it fits on no number of devices of that *limit*.
    """
    top = min(virtual_nodes, max(at_least, wanted, needs.useful_devices))
    fitting = None
    for count in range(at_least, top + 1):
        size = least_peak(needs, virtual_nodes, count)
        if size <= limit:
            fitting = Fit(count, count, size) if fitting is None else Fit(fitting.least, count, fitting.size)
        if fitting is not None and (size > limit or count >= wanted):
            break
    return fitting


@lru_cache(maxsize=1024)
def least_peak(needs: MemoryNeeds, virtual_nodes: int, devices: int) -> int:
    """What the fullest of this number of devices needs at least."""
    if not needs.is_cut:
        return needs.stages[0] + needs.node
    names = [str(number) for number in range(devices)]
    return min(peak(grid, needs) for grid in _grids(needs, virtual_nodes, names))


def _grids(needs: MemoryNeeds, virtual_nodes: int, devices: Sequence[DeviceId]) -> Iterator[Cells]:
    stages = len(needs.stages)
    yield with_copies(pipelines(stages, virtual_nodes, devices), needs.copies)
    lean = _stage_groups if len(devices) >= stages else _even_pipeline
    yield with_copies(lean(needs, virtual_nodes, devices), needs.copies)


def _stage_groups(needs: MemoryNeeds, virtual_nodes: int, devices: Sequence[DeviceId]) -> Cells:
    """One stage on each device: the first stages, which keep the most activations, get the devices left over."""
    share, more = divmod(len(devices), len(needs.stages))
    rest, groups = list(devices), []
    for stage in range(len(needs.stages)):
        size = share + (stage < more)
        groups.append(rest[:size])
        rest = rest[size:]
    return Cells(
        tuple(tuple(group[node * len(group) // virtual_nodes] for group in groups) for node in range(virtual_nodes))
    )


def _even_pipeline(needs: MemoryNeeds, virtual_nodes: int, devices: Sequence[DeviceId]) -> Cells:
    """One pipeline whose fullest device holds as little as can be."""
    low, high = max(needs.stages), sum(needs.stages)
    while low < high:
        middle = (low + high) // 2
        if max(_owners(needs.stages, middle, len(devices))) < len(devices):
            high = middle
        else:
            low = middle + 1
    route = tuple(devices[owner] for owner in _owners(needs.stages, low, len(devices)))
    return Cells((route,) * virtual_nodes)


def _owners(stages: Sequence[int], most: int, devices: int) -> list[int]:
    """Stages in a row on each device, up to *most* bytes, such that none of *devices* has nothing; may need more."""
    owners, owner, load = list[int](), 0, 0
    for stage, size in enumerate(stages):
        if stage and (load + size > most or len(stages) - stage <= devices - 1 - owner):
            owner, load = owner + 1, 0
        load += size
        owners.append(owner)
    return owners


def _activations(cells: Cells, device: DeviceId, needs: MemoryNeeds) -> int:
    """Of the cells that *device* has between forward and backward."""
    routes = Counter(route for route in cells.routes if device in route)
    stretches = [segments(route) for route in routes]
    longest = max((len(stages) for line in stretches for owner, stages in line if owner == device), default=0)
    flying = min(sum(routes.values()) * longest, flight_limit(stretches, device) * longest)
    return -(-needs.node * flying // cells.stages)
