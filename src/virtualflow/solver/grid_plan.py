"""The plan of a model in stages as a file: what ``vf solve -o`` writes and ``vf run --plan`` runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from virtualflow.core.devices import Pool, names_of, type_of
from virtualflow.solver.grid_forecast import DeviceForecast
from virtualflow.solver.grid_search import GridAnswer, GridPlan
from virtualflow.solver.plan import FORMAT, VERSION


def to_json(
    answer: GridAnswer,
    pools: Sequence[Pool],
    workload: str,
    batch_size: int,
    virtual_nodes: int,
    kind: str,
    copies: int,
) -> dict[str, Any]:
    """*pools* are the devices that were asked for: indices follow the order of their types."""
    types = [pool.device_type for pool in pools]
    others = [{"kind": name, **_summary(plan, types, batch_size)} for name, plan in answer.alternatives]
    return {
        "format": FORMAT,
        "version": VERSION,
        "workload": workload,
        "batch_size": batch_size,
        "virtual_nodes": virtual_nodes,
        "node_size": batch_size // virtual_nodes,
        "pipeline": kind,
        "copies": copies,
        **_summary(answer.best, types, batch_size),
        "every_grid_compared": answer.is_proven,
        "no_grid_below_seconds": answer.least_seconds,
        "alternatives": others,
    }


def _summary(plan: GridPlan, types: Sequence[str], batch_size: int) -> dict[str, Any]:
    counts = Counter(type_of(device) for device in plan.cells.devices)
    pools = [Pool(name, (counts[name],)) for name in types if name in counts]
    places = {name: place for place, name in enumerate(names_of(pools))}
    rows = [[places[device] for device in row] for row in plan.cells.rows]  # on the devices in use
    return {
        "shape": plan.shape,
        "step_time_seconds": plan.step_seconds,
        "examples_per_second": batch_size / plan.step_seconds,
        "bubble": plan.forecast.bubble,
        "fits": plan.forecast.fits,
        "devices": [{"type": pool.device_type, "count": pool.count} for pool in pools],
        "cells": rows,
        "mapping": "/".join(",".join(map(str, row)) for row in rows),
        "forecast": [figures_of(device) for device in plan.forecast.devices],
    }


def figures_of(device: DeviceForecast) -> dict[str, Any]:
    """A device in a step, as JSON."""
    return {
        "device": device.device,
        "busy_seconds": device.busy_seconds,
        "bubble": device.bubble,
        "state_bytes": device.state_bytes,
        "activation_bytes": device.activation_bytes,
        "memory_bytes": device.memory_bytes,
        "capacity_bytes": device.capacity_bytes if math.isfinite(device.capacity_bytes) else None,
        "sent_bytes": device.sent_bytes,
        "fits": device.fits,
    }
