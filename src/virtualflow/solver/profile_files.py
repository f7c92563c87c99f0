"""Profiles in files: those that ``vf profile`` has written, and the paper's, which come with this package."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from virtualflow.core import stage_profile
from virtualflow.core.profile import FORMAT, VERSION, Point, Profile, Workload, from_json, merged
from virtualflow.core.stage_profile import StagedWorkload
from virtualflow.errors import ProfileError

BUILT_IN = ("resnet50", "resnet56", "bert-base", "transformer")


def read(path: Path) -> Workload:
    contents = _contents(path)
    if stage_profile.is_staged(contents):
        raise ProfileError(
            f"{path} is of a model that is cut into stages, and says nothing about whole models. If the script has no "
            "stages any more, make its profiles again with `vf profile`."
        )
    return from_json(contents, str(path))


def read_all(folder: Path) -> Workload:
    """All profiles of a folder as one workload: one device type a file, or several."""
    return merged([read(path) for path in _paths(folder)])


def are_staged(folder: Path) -> bool:
    """Whether the profiles of a folder are of a model that is cut into stages."""
    return any(is_staged(path) for path in _paths(folder))


def is_staged(path: Path) -> bool:
    """Whether a file is the profile of a model that is cut into stages."""
    return stage_profile.is_staged(_contents(path))


def read_staged(path: Path) -> StagedWorkload:
    """The profile of a model that is cut into stages."""
    if not stage_profile.is_staged(contents := _contents(path)):
        raise ProfileError(
            f"{path} is of a whole model, and others beside it are of one that is cut into stages. Make them all "
            "again with `vf profile`, in an empty folder."
        )
    return stage_profile.from_json(contents, str(path))


def read_stages(folder: Path) -> StagedWorkload:
    """All profiles of a folder, of a model that is cut into stages, as one workload."""
    return stage_profile.merged([read_staged(path) for path in _paths(folder)])


def kept_stages(folder: Path) -> dict[str, Any] | None:
    """The stage profiles that are kept in *folder* as part of a job's description; None if there are none."""
    is_there = folder.is_dir() and any(folder.glob("*.json")) and are_staged(folder)
    return stage_profile.to_json(read_stages(folder)) if is_there else None


def _paths(folder: Path) -> list[Path]:
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise ProfileError(f"there is no profile in {folder}. `vf profile SCRIPT` makes one.")
    return paths


def _contents(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise ProfileError(f"cannot read the profile {path}: {error.strerror}") from error
    except ValueError as error:
        raise ProfileError(f"{path} is damaged ({error}). Make it again with `vf profile`.") from error


def built_in(name: str) -> Workload:
    """A workload of the paper, from its author's measurements."""
    if name not in BUILT_IN:
        raise ProfileError(f"there is no built-in workload {name!r}. There are {', '.join(BUILT_IN)}.")
    folder = resources.files("virtualflow.solver") / "profiles"
    with (folder / "paper.csv").open() as file:
        table = csv.DictReader(line for line in file if not line.startswith("#"))
        rows = [row for row in table if row["workload"] == name]
    points: dict[str, list[Point]] = {}
    for row in rows:
        size = int(row["node_size"])
        points.setdefault(row["device_type"], []).append(Point(size, size / float(row["examples_per_second"])))
    source = "the paper's author's measurements"
    profiles = {
        device_type: Profile(device_type, tuple(measured), source=source) for device_type, measured in points.items()
    }
    costs = json.loads((folder / "communication.json").read_text())[name]
    return from_json(
        {
            "format": FORMAT,
            "version": VERSION,
            "workload": name,
            "profiles": [asdict(profile) for profile in profiles.values()],
            "communication": costs,
        },
        "the built-in profiles",
    )
