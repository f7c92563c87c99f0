"""The batch size of each epoch: one for all, or a curriculum. The number of virtual nodes never changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from virtualflow.core.sharding import node_sizes
from virtualflow.errors import ConfigError


@dataclass(frozen=True, slots=True)
class BatchSchedule:
    """From which epoch on the virtual nodes have which sizes."""

    phases: tuple[tuple[int, tuple[int, ...]], ...]  # in order; the first is that of epoch 0

    @classmethod
    def of(cls, batch_size: int | Mapping[int, int], virtual_nodes: int | Sequence[int]) -> BatchSchedule:
        """What a script asks for: a batch size, or ``{epoch: batch_size}`` with one for epoch 0."""
        if not isinstance(batch_size, Mapping):
            return cls(((0, node_sizes(batch_size, virtual_nodes)),))
        if not isinstance(virtual_nodes, int):
            raise ConfigError(
                "batch_size= changes between epochs, and virtual_nodes= is a list of sizes, which fit one batch only. "
                "Use the number of virtual nodes."
            )
        if 0 not in batch_size or min(batch_size) < 0:
            raise ConfigError(
                f"batch_size={dict(batch_size)}: say from which epoch on each counts, beginning with epoch 0, as in "
                "{0: 64, 10: 128}."
            )
        return cls(tuple((epoch, node_sizes(batch_size[epoch], virtual_nodes)) for epoch in sorted(batch_size)))

    def at(self, epoch: int) -> tuple[int, ...]:
        """The sizes of the virtual nodes in *epoch*."""
        return [sizes for first, sizes in self.phases if first <= epoch][-1]

    @property
    def changes(self) -> bool:
        return len(self.phases) > 1

    @property
    def largest_node(self) -> int:
        return max(max(sizes) for _, sizes in self.phases)

    @property
    def all_sizes(self) -> set[int]:
        """Every size that a virtual node ever has."""
        return {size for _, sizes in self.phases for size in sizes}

    @property
    def later(self) -> dict[str, int]:
        """The batch sizes after the first, by epoch, for the record of a job."""
        return {str(epoch): sum(sizes) for epoch, sizes in self.phases[1:]}
