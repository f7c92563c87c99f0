"""The plan of a model in stages as a file: what ``vf solve -o`` writes and ``vf run --plan`` runs."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from virtualflow.core.devices import Pool, names_of, type_of
from virtualflow.solver.grid_forecast import DeviceForecast
from virtualflow.solver.grid_search import GridAnswer, GridPlan
from virtualflow.solver.plan import FORMAT, VERSION


def to_json(
    answer: GridAnswer, workload: str, batch_size: int, virtual_nodes: int, kind: str, copies: int
) -> dict[str, Any]:
    others = [{"kind": name, **_summary(plan, batch_size)} for name, plan in answer.alternatives]
    return {
        "format": FORMAT,
        "version": VERSION,
        "workload": workload,
        "batch_size": batch_size,
        "virtual_nodes": virtual_nodes,
        "node_size": batch_size // virtual_nodes,
        "pipeline": kind,
        "copies": copies,
        **_summary(answer.best, batch_size),
        "every_grid_compared": answer.is_proven,
        "no_grid_below_seconds": answer.least_seconds,
        "alternatives": others,
    }


def rows_of(plan: GridPlan) -> list[list[int]]:
    """For each stage a device's index for each virtual node, as ``--mapping`` has it on the devices in use."""
    names = names_of(_pools(plan))
    return [[names.index(route[stage]) for route in plan.cells.routes] for stage in range(plan.cells.stages)]


def mapping_of(plan: GridPlan) -> str:
    return "/".join(",".join(map(str, row)) for row in rows_of(plan))


def _pools(plan: GridPlan) -> list[Pool]:
    counts = Counter(type_of(device) for device in plan.cells.devices)
    return [Pool(name, (count,)) for name, count in counts.items()]


def _summary(plan: GridPlan, batch_size: int) -> dict[str, Any]:
    return {
        "shape": plan.shape,
        "step_time_seconds": plan.step_seconds,
        "examples_per_second": batch_size / plan.step_seconds,
        "bubble": plan.forecast.bubble,
        "fits": plan.forecast.fits,
        "devices": [{"type": pool.device_type, "count": pool.count} for pool in _pools(plan)],
        "cells": rows_of(plan),
        "mapping": mapping_of(plan),
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
