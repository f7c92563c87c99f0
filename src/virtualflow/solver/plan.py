"""A plan as a file: what ``vf solve -o`` writes and ``vf run --plan`` runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from virtualflow.core.devices import Pool, names_of
from virtualflow.errors import ConfigError
from virtualflow.solver.node_shares import Plan, Share

FORMAT, VERSION = "virtualflow plan", 1


@dataclass(frozen=True, slots=True)
class JobLayout:
    """A plan in the words of a job: its devices, the size of each virtual node, and who runs it."""

    devices: tuple[str, ...]
    node_sizes: tuple[int, ...]
    owners: tuple[int, ...] | None = None  # a device's index for each virtual node
    cells: tuple[tuple[int, ...], ...] | None = None  # of a model in stages: for each of them a row of devices


def to_json(plan: Plan, workload: str, others: Sequence[tuple[Plan, str]] = ()) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "workload": workload,
        **_summary(plan),
        "alternatives": [{**_summary(other), "why": why} for other, why in others],
    }


def _summary(plan: Plan) -> dict[str, Any]:
    return {
        "batch_size": plan.batch_size,
        "step_time_seconds": plan.step_seconds,
        "examples_per_second": plan.examples_per_second,
        "compute_seconds": plan.compute_seconds,
        "communication_seconds": plan.communication_seconds,
        "extrapolated": list(plan.guessed),
        "devices": [
            {
                "type": share.device_type,
                "count": share.count,
                "virtual_nodes": share.virtual_nodes,
                "node_size": share.node_size,
            }
            for share in plan.shares
        ],
    }


def read(path: Path) -> tuple[Share, ...]:
    """The shares of a plan file."""
    contents = _contents(path)
    if "cells" in contents:
        raise ConfigError(f"{path} is the plan of a model in stages: it has a grid, and no shares of virtual nodes.")
    with _understanding(path):
        return tuple(
            Share(entry["type"], int(entry["count"]), int(entry["virtual_nodes"]), int(entry["node_size"]))
            for entry in contents["devices"]
        )


def read_layout(path: Path) -> JobLayout:
    """A plan file in the words of a job."""
    contents = _contents(path)
    if "cells" not in contents:
        return layout(read(path))
    with _understanding(path):
        pools = [Pool(entry["type"], (int(entry["count"]),)) for entry in contents["devices"]]
        cells = tuple(tuple(int(owner) for owner in row) for row in contents["cells"])
        sizes = (int(contents["node_size"]),) * int(contents["virtual_nodes"])
        return JobLayout(names_of(pools), sizes, cells=cells)


def _contents(path: Path) -> dict[str, Any]:
    with _understanding(path):
        contents: dict[str, Any] = json.loads(path.read_text())
        if contents["format"] != FORMAT or contents["version"] != VERSION:
            raise ConfigError(f"{path} is not a plan of version {VERSION}. Make one with `vf solve ... -o {path}`.")
        return contents


@contextmanager
def _understanding(path: Path) -> Iterator[None]:
    """Say what is wrong with a plan file."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot read the plan {path}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is not a plan ({error}). Make one with `vf solve ... -o {path}`.") from error


def layout(shares: Sequence[Share]) -> JobLayout:
    """Devices by type in the order of the plan; each runs a block of virtual nodes of its size."""
    totals: dict[str, int] = {}
    for share in shares:
        totals[share.device_type] = totals.get(share.device_type, 0) + share.count
    devices = names_of([Pool(name, (count,)) for name, count in totals.items()])
    sizes: list[int] = []
    owners: list[int] = []
    first = 0
    for name in totals:
        for share in (share for share in shares if share.device_type == name):
            for device in range(first, first + share.count):
                sizes += [share.node_size] * share.virtual_nodes
                owners += [device] * share.virtual_nodes
            first += share.count
    return JobLayout(devices, tuple(sizes), tuple(owners))
