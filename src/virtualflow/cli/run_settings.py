"""How ``vf run`` is to run a job, read from its options: all of this may differ when the job is resumed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from virtualflow.cli.cell_table import rows_of
from virtualflow.cli.options import (
    devices_in,
    devices_of,
    numbers,
    token_file_for,
    workload_for,
)
from virtualflow.core import profile
from virtualflow.core.devices import Pool, type_of
from virtualflow.core.emulation import Devices
from virtualflow.core.job_names import check_name
from virtualflow.errors import LaunchError
from virtualflow.solver import plan as plans
from virtualflow.solver import profile_files
from virtualflow.solver.plan import JobLayout
from virtualflow.system.home import profiles_of


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """The options that choose devices, and what these stand for."""

    devices: str
    plan: Path | None
    device_file: Path | None
    emulate: str | None
    time_scale: float | None

    def layout(self) -> JobLayout | None:
        """The plan's, if one was given."""
        return plans.read_layout(self.plan) if self.plan is not None else None

    def chosen(self, layout: JobLayout | None) -> Devices:
        if layout is None:
            return devices_of(self.devices, self.device_file, self.emulate, self.time_scale)
        counts = Counter(type_of(name) for name in layout.devices)
        pools = [Pool(name, (count,)) for name, count in counts.items()]
        return devices_in(pools, self.device_file, self.emulate, self.time_scale)


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Fields of a job's description, by the option that decides them."""

    by_option: dict[str, dict[str, Any]]
    node_sizes: tuple[int, ...] | None  # a plan's; part of the job

    @classmethod
    def read(
        cls,
        options: DeviceOptions,
        script: Path | None,
        profiles: Path | None,
        *,
        backend: str,
        rebalance: bool | None,
        mapping: str | None,
        patience: float,
        replace: bool,
        listen: str | None,
        token_file: Path | None,
        **described: Any,
    ) -> RunSettings:
        """What the options say. Raises an error that names the option which can't be followed.

        *described* are those that are fields of the description as they are.
        """
        check_name(described["name"])
        layout = options.layout()
        devices = options.chosen(layout)
        cells = rows_of(mapping) if mapping and "/" in mapping else None
        by_hand = tuple(numbers(mapping, "--mapping")) if mapping and cells is None else None
        owners = by_hand if mapping else layout.owners if layout else None
        cells = cells if mapping else layout.cells if layout else None
        by_option: dict[str, dict[str, Any]] = {
            "devices": {
                "devices": devices.names,
                "emulated": devices.emulated,
                "stage_profile": (staged := _stage_profile(script, profiles)),
                "workload": _workload(script, profiles, devices, owners) if cells is None and not staged else None,
            },
            "backend": {"backend": _backend(backend)},
            "rebalance": {"rebalance": devices.are_mixed if rebalance is None else rebalance},
            "mapping": {"owners": owners, "cells": cells},
            "patience": {"patience_seconds": patience},
            "replace": {"replace_lost": replace},
            "listen": {"listen": listen, "token_file": str(token_file_for(listen, token_file)) if listen else None},
        }
        by_option |= {name: {name: value} for name, value in described.items()}
        return cls(by_option, layout.node_sizes if layout else None)

    def all(self) -> dict[str, Any]:
        """For a new job."""
        return {field: value for fields in self.by_option.values() for field, value in fields.items()}

    def given(self, options: Collection[str]) -> dict[str, Any]:
        """For a job that goes on: what the options decide that were given this time."""
        named = (fields for option, fields in self.by_option.items() if option in options)
        changed = {field: value for fields in named for field, value in fields.items()}
        if "devices" in changed:
            changed.setdefault("owners", None)
            changed.setdefault("cells", None)
        return changed


def _workload(
    script: Path | None, folder: Path | None, devices: Devices, owners: Sequence[int] | None
) -> dict[str, Any] | None:
    """The profiles by which the job's virtual nodes are mapped: needed if its devices are not all alike."""
    if script is None or (not devices.are_mixed and folder is None):
        return None
    if owners is not None and folder is None and not profiles_of(str(script)).is_dir():
        return None  # mapped by hand, or by a plan
    known = workload_for(str(script), folder, devices.names)
    return profile.to_json(known) if known is not None else None


def _stage_profile(script: Path | None, folder: Path | None) -> dict[str, Any] | None:
    """What is known of the stages of a model that is cut, by which its grid is chosen."""
    where = folder or (profiles_of(str(script)) if script is not None else None)
    return profile_files.kept_stages(where) if where is not None else None


def _backend(text: str) -> str:
    if text not in ("local", "ray"):
        raise LaunchError(f"--backend {text}: expected local or ray")
    if text == "ray":
        from virtualflow.backends import ray  # noqa: F401  (says so at once if it is not installed)
    return text
