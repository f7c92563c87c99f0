"""What training code asks of whoever chooses grids of cells by a profile: it never knows how that is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from virtualflow.core.cells import Cells
from virtualflow.core.mapping import DeviceId


@dataclass(frozen=True, slots=True)
class GridWanted:
    """What the script says of its model and its grid, and what memory its devices have where that is known."""

    stages: int
    parameters: int
    node_size: int  # the largest of its virtual nodes
    virtual_nodes: int
    copies: int
    schedule: str
    device_bytes: int | None = None


class GridsByProfile(Protocol):
    """The best known grid on any devices: a pure function, the same on every worker."""

    def why_not(self, wanted: GridWanted, devices: Sequence[DeviceId]) -> str | None:
        """Why the profile tells nothing of that model on *devices*; None if it does."""

    def best(self, wanted: GridWanted, devices: tuple[DeviceId, ...]) -> Cells: ...
