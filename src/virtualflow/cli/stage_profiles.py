"""The profiles of a model in stages, as ``vf profile`` writes and shows them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from virtualflow.cli.files import writing
from virtualflow.core import stage_profile
from virtualflow.core.profile import BEYOND
from virtualflow.core.sizes import size_text
from virtualflow.core.stage_profile import Link, StagedProfile, StagedWorkload, StagePoint, UnitFigures
from virtualflow.core.wording import counted
from virtualflow.system.text import visible


def file_of(folder: Path, device_type: str) -> Path:
    """Where the profile of a device type is kept."""
    return folder / f"{re.sub(r'[^A-Za-z0-9.@_-]', '_', device_type)}.json"


def write_profile(path: Path, contents: Mapping[str, Any]) -> None:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(contents, indent=1) + "\n")


def write_stages(
    folder: Path, name: str, results: Mapping[str, Mapping[str, Any]], link: Link
) -> list[tuple[Path, StagedWorkload]]:
    """Write what was measured on each device type."""
    written = []
    for device_type, result in results.items():
        workload = StagedWorkload(name, {device_type: _profile(device_type, result)}, link)
        write_profile(path := file_of(folder, device_type), stage_profile.to_json(workload))
        written.append((path, workload))
    return written


def report_stages(console: Console, written: list[tuple[Path, StagedWorkload]], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([stage_profile.to_json(workload) for _, workload in written], indent=1))
        return
    for path, workload in written:
        for profile in workload.profiles.values():
            _show(console, profile)
        console.print(f"  written to {path}", soft_wrap=True)


def _profile(device_type: str, result: Mapping[str, Any]) -> StagedProfile:
    return StagedProfile(
        device_type,
        tuple(tuple(StagePoint(**point) for point in points) for points in result["stages"]),
        tuple(UnitFigures(**{**unit, "stages": tuple(unit["stages"])}) for unit in result["units"]),
        result["memory_bytes"],
        result["facts"],
        result["ended_by"],
    )


def _show(console: Console, profile: StagedProfile) -> None:
    size = profile.node_sizes[-1]
    title = Text(visible(f"{profile.device_type}, virtual nodes of {counted(size, 'example')}"), style="italic")
    table = Table(
        "stage", "forward", "backward", "weights", "optimizer", "kept", "to the next", title=title, title_justify="left"
    )
    for stage, point in enumerate(profile.at(size)):
        units = [unit for unit in profile.units if stage in unit.stages]
        table.add_row(
            str(stage),
            f"{point.forward_seconds * 1e3:.4g} ms",
            f"{point.backward_seconds * 1e3:.4g} ms",
            size_text(sum(unit.weight_bytes for unit in units)),
            size_text(sum(unit.optimizer_bytes for unit in units)),
            size_text(point.kept_bytes),
            size_text(point.crossing_bytes),
        )
    console.print(table)
    console.print(f"  largest node size: {size}; {BEYOND[profile.ended_by]}", soft_wrap=True)
