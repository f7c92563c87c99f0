"""A membership of several workers that are threads of one process."""

from __future__ import annotations

from collections.abc import Callable

from virtualflow.testing import ThreadGroup
from virtualflow.train.peers import Peers
from virtualflow.train.solo import Solo

PATIENCE_SECONDS = 20.0  # so that a test in which somebody does not come fails instead of hanging


class OneOfSeveral(Solo):
    """The worker of rank *group.rank*; after a loss it goes on with the group that *next_group* gives."""

    def __init__(self, group: ThreadGroup, next_group: Callable[[int], ThreadGroup | None] | None = None) -> None:
        super().__init__()
        self.devices = tuple(str(rank) for rank in range(group.size))
        self.device = str(group.rank)
        self.group = group  # type: ignore[assignment]
        self._next_group = next_group

    def recover(self) -> None:
        assert self._next_group is not None
        self.group = self._next_group(int(self.device))  # type: ignore[assignment]


def peers_of(size: int) -> list[Peers]:
    return [Peers(OneOfSeveral(group)) for group in ThreadGroup.of(size, PATIENCE_SECONDS)]
