"""What a job is, wherever one is described: as it is submitted, recorded, launched and run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from virtualflow.core.memory_needs import MemoryNeeds

# What a cluster settles, and what holds only on devices that a job keeps: nothing that is submitted.
NOT_SUBMITTED = frozenset(
    {"threads_per_device", "device_type", "device_bytes", "hash_seed", "audit", "profiling", "replay"}
    | {"owners", "cells", "node_sizes", "stage_profile"}
)


@dataclass(frozen=True, slots=True)
class JobDescription:
    """The script and everything that stays the same wherever, whenever and however often the job is launched."""

    script: str  # a path
    arguments: tuple[str, ...] = ()
    threads_per_device: int = 1
    device_type: str = "auto"
    audit: bool = False
    checkpoint_every: int = 0  # steps; 0 for never
    sentinel: float | None = None  # the part of each batch that is watched; None: as the script says
    from_checkpoint: str | None = None  # a file that the job goes on from, as long as it has none of its own
    owners: tuple[int, ...] | None = None  # the mapping given by hand: a device's index for each virtual node
    cells: tuple[tuple[int, ...], ...] | None = None  # the same for a model in stages: for each stage a row of devices
    memory: MemoryNeeds | None = None  # as its owner states
    device_bytes: int | None = None  # the memory of each of its devices, where it counts
    stage_profile: dict[str, Any] | None = None  # by which its grid of cells is chosen, as core.stage_profile writes it
    node_sizes: tuple[int, ...] | None = None  # a plan's, instead of the script's
    emulated: dict[str, dict[str, Any]] = field(default_factory=dict)  # by device, or until it is launched by type
    profiling: dict[str, Any] | None = None
    replay: dict[str, Any] | None = None  # of a step of another job: the script ends after it
    hash_seed: str = "0"  # PYTHONHASHSEED in its workers
    preload: tuple[str, ...] | None = None  # what is imported before workers start; None: what the script imports
    name: str = ""  # as its owner calls it
    sweep: str = ""  # with which other jobs it was submitted, with other parameters
    parameters: dict[str, str] = field(default_factory=dict)  # of the sweep, as they stand in its arguments

    def result(self) -> JobDescription:
        """Just what decides the result: nothing of where the job runs, and of what is done for its safety."""
        decides = ("threads_per_device", "from_checkpoint", "node_sizes", "hash_seed", "preload")
        return JobDescription(self.script, self.arguments, **{name: getattr(self, name) for name in decides})

    @property
    def title(self) -> str:
        """Its name; without one, its script's, or that of the package whose ``__main__`` it is."""
        script = Path(self.script)
        return self.name or (script.parent.name if script.stem == "__main__" else script.stem)
