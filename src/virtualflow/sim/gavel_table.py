"""Gavel's table of throughputs, as it is published: ``simulation_throughputs.json``."""

from __future__ import annotations

import ast
import json
from functools import cache
from pathlib import Path
from typing import Any

from virtualflow.cluster.throughput.table import Table, WorkloadSize
from virtualflow.errors import ConfigError


def read(path: Path, *, whole_steps_seconds: float | None = None) -> Table:
    """By device type, "(workload, devices)", and "null" for alone or the workload beside it for a pair of speeds."""
    try:
        contents = json.loads(path.read_text())
        alone = {name.lower(): _alone(rows) for name, rows in contents.items()}
        shared = {name.lower(): _shared(rows) for name, rows in contents.items()}
        if not contents:
            raise ValueError("it has no device type")
    except OSError as error:
        raise ConfigError(f"cannot read the table of throughputs {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, SyntaxError) as error:
        raise ConfigError(f"{path} is no table of throughputs like Gavel's ({type(error).__name__}: {error})") from None
    return Table(alone, shared, whole_steps_seconds)


def _alone(rows: dict[str, dict[str, Any]]) -> dict[WorkloadSize, float]:
    return {_key(text): float(row["null"]) for text, row in rows.items()}


def _shared(rows: dict[str, dict[str, Any]]) -> dict[tuple[WorkloadSize, WorkloadSize], float]:
    return {
        (_key(text), _key(other)): float(speeds[0])
        for text, row in rows.items()
        for other, speeds in row.items()
        if other != "null"
    }


@cache  # the same few dozen, thousands of times
def _key(text: str) -> WorkloadSize:
    workload, devices = ast.literal_eval(text)
    return str(workload), int(devices)
