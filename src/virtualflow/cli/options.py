"""Options that several verbs read."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from virtualflow.cli.screen import say
from virtualflow.core import emulation
from virtualflow.core.devices import CPU, Pool, is_number, names_of, parse_pools, type_of
from virtualflow.core.emulation import Devices
from virtualflow.core.profile import Workload
from virtualflow.errors import ConfigError, LaunchError, ProfileError
from virtualflow.job import tokens
from virtualflow.program.manifest import Program
from virtualflow.solver import device_files, profile_files
from virtualflow.solver.profile_files import BUILT_IN
from virtualflow.system.home import home

UNIT_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
DeviceFile = Annotated[
    Path | None, typer.Option(help="A TOML file that says which device types to emulate, and how.", metavar="FILE")
]
Emulate = Annotated[
    str | None,
    typer.Option(help="Emulate device types by the profiles of this workload, such as resnet50.", metavar="WORKLOAD"),
]
TimeScale = Annotated[float | None, typer.Option(help="Scale of emulated times, such as 0.05.", metavar="FACTOR")]
Listen = Annotated[
    str | None,
    typer.Option(help="Accept workers from other machines at this address: see `vf join`.", metavar="HOST:PORT"),
]
TokenFile = Annotated[
    Path | None, typer.Option(help="The file with the job's token; created if missing.", metavar="FILE")
]
DeviceType = Annotated[str, typer.Option(help="What workers compute on: auto, cpu or cuda.", metavar="TYPE")]
Profiles = Annotated[Path | None, typer.Option(help="A folder with profiles.", metavar="DIR")]
Include = Annotated[
    list[str] | None,
    typer.Option(
        help="Copy these files into the job, so that later edits do not count. May be repeated.", metavar="GLOB"
    ),
]


def tell_left_out(program: Program) -> None:
    """Warn of what is no part of a job's snapshot."""
    for text in program.left_out:
        say(f"warning: the job's snapshot does not hold {text}: later edits there would count", sys.stderr)


def device_names(text: str) -> tuple[str, ...]:
    """The names of ``--devices N``: 0 to N - 1."""
    if not is_number(text) or int(text) < 1:
        raise ConfigError(f"--devices {text}: expected how many devices, a number from 1 on")
    return tuple(str(number) for number in range(int(text)))


def token_file_for(listen: str, token_file: Path | None) -> Path:
    """The token file of a job that listens at the address *listen*."""
    tokens.parse_address(listen)
    if token_file is None:
        raise LaunchError("--listen needs --token-file FILE: workers need its token to join the job")
    tokens.read_token(token_file, create=True)  # a clear word now rather than when the job starts
    return token_file.resolve()


def seconds_of(text: str, option: str) -> float:
    """``90``, ``90s``, ``15m``, ``2h`` or ``1d``."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)", text)
    if match is None:
        raise ConfigError(f"{option} {text}: expected a time such as 90s, 15m, 2h or 1d")
    return float(match[1]) * UNIT_SECONDS[match[2]]


def numbers(text: str, option: str) -> list[int]:
    """The whole numbers of a list such as ``0,1,1,0``."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} {text}: expected whole numbers with commas between them") from None


def devices_of(text: str, file: Path | None, emulate: str | None, scale: float | None) -> Devices:
    """``--devices``, with what ``--device-file`` and ``--emulate`` say of their types."""
    return devices_in(pools_of(text), file, emulate, scale)


def device_type_of(text: str) -> str:
    if text not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"--device-type {text}: expected auto, cpu or cuda")
    return text


def pools_of(text: str) -> Sequence[Pool]:
    """``--devices``: a number, or types."""
    return [Pool(CPU, (len(device_names(text)),))] if is_number(text) else parse_pools(text)


def devices_in(pools: Sequence[Pool], file: Path | None, emulate: str | None, scale: float | None) -> Devices:
    names = names_of(pools)
    contents = device_files.read_file(file) if file is not None else {}
    scale = scale if scale is not None else float(contents.get("time_scale", 1.0))
    if scale <= 0:
        raise ConfigError(f"--time-scale {scale}: expected a number above 0")
    workload = profile_files.built_in(emulate) if emulate is not None else None
    by_type = {}
    for pool in pools:
        found = device_files.of_type(pool.device_type, contents, workload, scale)
        if found is not None:
            by_type[pool.device_type] = found
    emulated = {name: each.to_json() for name, each in emulation.slowed(names, by_type, contents).items()}
    return Devices(tuple(pools), names, emulated)


def profiles_of(script: str) -> Path:
    """Where the profiles of a script are kept."""
    return home() / "profiles" / Path(script).stem


def workload_of(name: str | None, folder: Path | None) -> Workload:
    """A built-in workload, the profiles in a folder, or those last made for a script."""
    if folder is not None:
        return profile_files.read_all(folder)
    if name is None:
        raise ConfigError(
            "which workload? --workload NAME (a built-in one, or a script that was profiled), or --profiles DIR"
        )
    if name in BUILT_IN:
        return profile_files.built_in(name)
    made = profiles_of(name)
    if not made.is_dir():
        raise ProfileError(
            f"there is no workload {name!r}. Built in: {', '.join(BUILT_IN)}. For a script of yours, `vf profile "
            f"{Path(name).stem}.py` makes its profiles."
        )
    return profile_files.read_all(made)


def workload_for(script: str, folder: Path | None, names: Sequence[str]) -> Workload | None:
    """The profiles of a script for devices of several types, which can't be mapped well without."""
    types = {type_of(name) for name in names}
    where = folder or profiles_of(script)
    if folder is not None and not folder.is_dir():
        raise ProfileError(f"--profiles {folder}: there is no such folder. `vf profile -o {folder}` makes one.")
    if not where.is_dir():
        if len(types) == 1:
            return None
        raise ProfileError(
            f"{script} has no profiles, so its speed on {' and '.join(sorted(types))} is not known. Measure it: "
            f"vf profile --devices {','.join(f'{name}:1' for name in sorted(types))} {script}"
        )
    workload = profile_files.read_all(where)
    for name in types:
        if len(types) > 1 or name in workload.profiles:
            workload.profile(name)
    return workload if types <= workload.profiles.keys() else None
