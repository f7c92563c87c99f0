"""How ``vf run`` is to run a job, read from its options: all of this may differ when the job is resumed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from virtualflow.cli.cell_table import rows_of
from virtualflow.cli.job_options import RunOptions
from virtualflow.cli.options import (
    DeviceFile,
    Emulate,
    Listen,
    Profiles,
    TimeScale,
    TlsCert,
    TlsKey,
    TokenFile,
    devices_in,
    devices_of,
    numbers,
    token_file_for,
    workload_for,
)
from virtualflow.cli.screen import screen
from virtualflow.core import profile
from virtualflow.core.devices import Pool, type_of
from virtualflow.core.emulation import Devices
from virtualflow.core.job_names import check_name
from virtualflow.errors import LaunchError, ProfileError
from virtualflow.solver import plan as plans
from virtualflow.solver import profile_files
from virtualflow.solver.plan import JobLayout
from virtualflow.system import identity
from virtualflow.system.home import profiles_of


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """The options that choose devices, what these stand for, and which virtual nodes each of them runs."""

    devices: Annotated[
        str,
        typer.Option(help="The number of devices, up to the virtual nodes; or types: V100:2,P100:8.", metavar="N|LIST"),
    ] = "1"
    plan: Annotated[
        Path | None, typer.Option(help="A plan of `vf solve -o`: devices, node sizes and mapping.", metavar="FILE")
    ] = None
    profiles: Profiles = None
    rebalance: Annotated[
        bool | None,
        typer.Option(
            "--rebalance/--no-rebalance", help="Move virtual nodes away from slow devices; on for mixed types."
        ),
    ] = None
    mapping: Annotated[
        str | None,
        typer.Option(
            help="The device index of each virtual node, such as 0,1,1,0; with stages a row for each: 0,0/1,1.",
            metavar="LIST",
        ),
    ] = None
    device_file: DeviceFile = None
    emulate: Emulate = None
    time_scale: TimeScale = None

    def layout(self) -> JobLayout | None:
        """The plan's, if one was given."""
        return plans.read_layout(self.plan) if self.plan is not None else None

    def chosen(self, layout: JobLayout | None) -> Devices:
        if layout is None:
            return devices_of(self.devices, self.device_file, self.emulate, self.time_scale)
        counts = Counter(type_of(name) for name in layout.devices)
        pools = [Pool(name, (count,)) for name, count in counts.items()]
        return devices_in(pools, self.device_file, self.emulate, self.time_scale)

    def cells(self, layout: JobLayout | None) -> tuple[tuple[int, ...], ...] | None:
        """The mapping of a model in stages, given by hand or by the plan."""
        if self.mapping:
            return rows_of(self.mapping) if "/" in self.mapping else None
        return layout.cells if layout else None

    def owners(self, layout: JobLayout | None) -> tuple[int, ...] | None:
        """The mapping of a model that is not cut."""
        if self.mapping:
            return None if "/" in self.mapping else tuple(numbers(self.mapping, "--mapping"))
        return layout.owners if layout else None


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """The options about its workers: where they run, who may join, and what becomes of lost ones."""

    backend: Annotated[
        str,
        typer.Option(
            help="Where workers run: local is this machine, ray the Ray cluster that it belongs to or RAY_ADDRESS "
            "names. Device types are then the cluster's GPU models and custom resources.",
            metavar="local|ray",
        ),
    ] = "local"
    replace: Annotated[bool, typer.Option("--replace/--no-replace", help="Replace lost workers.")] = True
    patience: Annotated[
        float,
        typer.Option(
            help="Seconds after which a worker that blocks the others counts as lost.", min=1, metavar="SECONDS"
        ),
    ] = 30.0
    listen: Listen = None
    token_file: TokenFile = None
    tls_cert: TlsCert = None
    tls_key: TlsKey = None

    def by_option(self) -> dict[str, dict[str, Any]]:
        """Fields of the launch by the option that decides them."""
        if self.listen is None and (self.tls_cert is not None or self.tls_key is not None):
            raise LaunchError(
                "--tls-cert and --tls-key are about --listen HOST:PORT: nothing else of a job is on a network"
            )
        own = identity.chosen(self.tls_cert, self.tls_key) if self.listen else None
        file = str(token_file_for(self.listen, self.token_file, own)) if self.listen and own else None
        cert, key = (str(own.certificate), str(own.key)) if own is not None and own.is_given else (None, None)
        return {
            "backend": {"backend": _backend(self.backend)},
            "patience": {"patience_seconds": self.patience},
            "replace": {"replace_lost": self.replace},
            "listen": {"listen": self.listen, "token_file": file, "tls_cert": cert, "tls_key": key},
        }


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Fields of a job's description and launch, by the option that decides them."""

    by_option: dict[str, dict[str, Any]]
    node_sizes: tuple[int, ...] | None  # a plan's; part of the job

    @classmethod
    def read(cls, job: RunOptions, where: DeviceOptions, launch: LaunchOptions, script: Path | None) -> RunSettings:
        """What the options say. Raises an error that names the option which can't be followed."""
        check_name(job.name)
        layout = where.layout()
        devices = where.chosen(layout)
        cells, owners = where.cells(layout), where.owners(layout)
        by_option: dict[str, dict[str, Any]] = {
            "devices": {
                "devices": devices.names,
                "emulated": devices.emulated,
                "stage_profile": (staged := _stage_profile(script, where.profiles)),
                "workload": None if cells or staged else _workload(script, where.profiles, devices, owners),
            },
            "rebalance": {"rebalance": devices.are_mixed if where.rebalance is None else where.rebalance},
            "mapping": {"owners": owners, "cells": cells},
        }
        by_option |= launch.by_option() | {name: {name: value} for name, value in job.described().items()}
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
    if folder is not None:
        return profile_files.kept_stages(folder)
    try:
        return profile_files.kept_stages(profiles_of(str(script))) if script is not None else None
    except ProfileError as error:  # nobody has asked for it
        screen(stderr=True).print(Text(str(error), style="yellow"), soft_wrap=True)
        return None


def _backend(text: str) -> str:
    if text not in ("local", "ray"):
        raise LaunchError(f"--backend {text}: expected local or ray")
    if text == "ray":
        from virtualflow.backends import ray  # noqa: F401  (says so at once if it is not installed)
    return text
