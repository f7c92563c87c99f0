"""Options about memory: what a job needs, and what devices have."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from virtualflow.core.memory_needs import MemoryNeeds
from virtualflow.core.sizes import parse_size
from virtualflow.errors import ConfigError
from virtualflow.solver import device_files

StatedMemory = Annotated[
    str | None,
    typer.Option(
        help="What the model needs with its optimizer and sums: one size, or with stages one for each, "
        "such as 6GB,4GBx6,8GB. It then runs only on devices that hold it.",
        metavar="SIZES",
    ),
]
NodeMemory = Annotated[
    str | None,
    typer.Option(
        help="Besides --memory: the activations of one virtual node, through the whole model.", metavar="SIZE"
    ),
]
Copies = Annotated[
    int | None, typer.Option(help="Besides --memory: on how many devices each stage is kept; 2 unless given.", min=1)
]
OfDevices = Annotated[
    str | None,
    typer.Option(help="The memory of a device, such as 16GB, or by type: V100=16GB,P100=12GB.", metavar="SIZES"),
]


def needs_of(memory: str | None, node_memory: str | None, copies: int | None) -> MemoryNeeds | None:
    """What ``--memory`` and the options beside it say."""
    if memory is None:
        if node_memory is not None:
            raise ConfigError("--node-memory needs --memory: the model's own, or that of each stage")
        if copies is not None:
            raise ConfigError("--copies needs --memory: without it, a job's copies are those of its Trainer")
        return None
    sizes: list[int] = []
    for part in memory.split(","):
        size, is_several, times = part.lower().partition("x")
        if is_several and not (times.isdecimal() and 0 < int(times) <= 4096):
            raise ConfigError(f"--memory {part}: expected a size, or one of several stages such as 4GBx6")
        sizes += [parse_size(size, "--memory")] * int(times or 1)
    node = parse_size(node_memory, "--node-memory") if node_memory is not None else 0
    return MemoryNeeds(tuple(sizes), node, 2 if copies is None else copies)


def device_memory(text: str | None, file: Path | None, types: Collection[str]) -> dict[str, int]:
    """Bytes by device type: what the device file says, and ``--device-memory``, which counts."""
    known = device_files.memory_by_type(device_files.read_file(file)) if file is not None else {}
    return known | memory_by_type(text, types, "--device-memory")


def memory_by_type(text: str | None, types: Collection[str], option: str) -> dict[str, int]:
    """Bytes by device type of an option such as ``16GB``, which is for all, or ``V100=16GB,P100=12GB``."""
    if text is None:
        return {}
    if "=" not in text:
        return dict.fromkeys(types, _memory(text, option))
    known: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = (word.strip() for word in part.partition("="))
        if name not in types:
            raise ConfigError(f"{option} {part}: there is no device type {name!r}. There are {', '.join(types)}.")
        if name in known:
            raise ConfigError(f"{option} {text}: it names {name} twice")
        known[name] = _memory(size, option)
    return known


def _memory(text: str, option: str) -> int:
    if (size := parse_size(text, option)) < 1:
        raise ConfigError(f"{option} {text}: a device without memory runs nothing")
    return size
