"""What a job is, wherever one is described: as it is submitted, recorded, launched and run."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from virtualflow.system.hash_seed import hash_seed_of


@dataclass(frozen=True, slots=True)
class JobDescription:
    """The script and everything that stays the same wherever, whenever and however often the job is launched."""

    script: str  # a path
    arguments: tuple[str, ...] = ()
    threads_per_device: int = 1
    device_type: str = "auto"
    audit: bool = False
    checkpoint_every: int = 0
    from_checkpoint: str | None = None  # a file that the job goes on from, as long as it has none of its own
    owners: tuple[int, ...] | None = None  # the mapping given by hand: a device's index for each virtual node
    node_sizes: tuple[int, ...] | None = None  # a plan's
    emulated: dict[str, dict[str, Any]] = field(default_factory=dict)  # by device, or until it is launched by type
    profiling: dict[str, Any] | None = None
    hash_seed: str = field(default_factory=lambda: hash_seed_of(os.environ))
    name: str = ""  # as its owner calls it

    @property
    def title(self) -> str:
        """Its name; without one, its script's."""
        return self.name or Path(self.script).stem
