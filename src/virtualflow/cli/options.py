"""Options that several verbs read."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from virtualflow.cli.screen import print_line
from virtualflow.core import emulation
from virtualflow.core.device_choice import ACCELERATORS, AUTO
from virtualflow.core.devices import CPU, Pool, is_number, names_of, parse_pools, type_of
from virtualflow.core.emulation import Devices
from virtualflow.core.profile import Workload
from virtualflow.core.stage_profile import StagedWorkload
from virtualflow.errors import ConfigError, LaunchError, ProfileError
from virtualflow.job import tokens
from virtualflow.program import source
from virtualflow.program.manifest import Program
from virtualflow.solver import device_files, profile_files
from virtualflow.solver.profile_files import BUILT_IN
from virtualflow.system import tls
from virtualflow.system.home import profiles_of
from virtualflow.system.identity import Identity

UNENCRYPTED = (
    "warning: what workers send each other in a step (gloo, NCCL) is not encrypted. Use --listen in a private network, "
    "or on an address of a WireGuard tunnel. `vf join` itself is encrypted."
)

UNIT_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
AsModule = Annotated[
    bool,
    typer.Option("--module", "-m", help="SCRIPT is the name of a module, found from this folder as by `python -m`."),
]
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
    typer.Option(
        help="Accept workers from other machines at this address: see `vf join`. What workers send each other "
        "(gloo, NCCL) is not encrypted: use a private network, or WireGuard.",
        metavar="HOST:PORT",
    ),
]
TlsCert = Annotated[
    Path | None,
    typer.Option(help="Be known by this certificate (PEM) instead of this machine's own.", metavar="FILE"),
]
TlsKey = Annotated[Path | None, typer.Option(help="The key of --tls-cert (PEM).", metavar="FILE")]
TokenFile = Annotated[
    Path | None, typer.Option(help="The file with the job's token; created if missing.", metavar="FILE")
]
DeviceType = Annotated[str, typer.Option(help="What workers compute on: auto, cpu, cuda or xpu.", metavar="TYPE")]
Profiles = Annotated[Path | None, typer.Option(help="A folder with profiles.", metavar="DIR")]
Include = Annotated[
    list[str] | None,
    typer.Option(
        help="Copy these files into the job, so that later edits do not count. May be repeated.", metavar="GLOB"
    ),
]

Useful = Annotated[
    bool, typer.Option("--useful", help="wfs: a job gets no device that would not make it faster; others get it.")
]
RoundSeconds = Annotated[
    float,
    typer.Option(help="las and Gavel's other policies: the length of a round.", min=0.1, metavar="SECONDS"),
]


def preload_of(text: str | None) -> tuple[str, ...] | None:
    """``--preload``: modules, ``none``, or without it what the script imports."""
    if text is None:
        return None
    if text == "none":
        return ()
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ConfigError(f"--preload {text}: {name!r} is not the name of a module. Give some, or none.")
    return names


def program_of(script: Path, *, as_module: bool) -> tuple[Path, str]:
    """The file of SCRIPT; and with ``-m``, the module's full name."""
    if not as_module:
        return script, ""
    located = source.module_to_run(str(script), source.search_path(os.getcwd(), os.environ))
    if located is None:
        raise LaunchError(
            f"there is no module {script} in this folder or on Python's path. `vf run -m pkg.mod` runs pkg/mod.py, and "
            "`vf run -m pkg` runs pkg/__main__.py."
        )
    return Path(located[1]), located[0]


def warn_left_out(program: Program) -> None:
    """Warn of what is no part of a job's snapshot."""
    for text in program.left_out:
        print_line(f"warning: the job's snapshot does not hold {text}: later edits there would count", sys.stderr)


def device_names(text: str) -> tuple[str, ...]:
    """The names of ``--devices N``: 0 to N - 1."""
    if not is_number(text) or int(text) < 1:
        raise ConfigError(f"--devices {text}: expected a number of devices, 1 or more")
    return tuple(str(number) for number in range(int(text)))


def token_file_for(listen: str, token_file: Path | None, own: Identity) -> Path:
    """The token file of a job that listens at the address *listen*, and is known by *own*."""
    host, _ = tokens.parse_address(listen)
    if token_file is None:
        raise LaunchError("--listen needs --token-file FILE: workers need its token to join the job")
    tokens.made_token(token_file, own)  # a clear word now rather than when the job starts
    if not tls.is_loopback(host):
        print_line(UNENCRYPTED, sys.stderr)
    return token_file.resolve()


def seconds_of(text: str, option: str) -> float:
    """``90``, ``90s``, ``15m``, ``2h`` or ``1d``."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)", text)
    if match is None:
        raise ConfigError(f"{option} {text}: expected a time such as 90s, 15m, 2h or 1d")
    return float(match[1]) * UNIT_SECONDS[match[2]]


def moment_of(text: str, option: str, now: float) -> float:
    """``18:00``, today or tomorrow; ``2026-12-31 18:00``; or a time from *now* on, such as ``6h``."""
    if re.fullmatch(r"[0-9]{1,2}:[0-9]{2}", text):
        hour, minute = map(int, text.split(":"))
        if hour < 24 and minute < 60:
            today = datetime.fromtimestamp(now).replace(hour=hour, minute=minute, second=0, microsecond=0)
            chosen = today if today.timestamp() > now else today + timedelta(days=1)
            return chosen.timestamp()
    elif re.fullmatch(r"[0-9]+(\.[0-9]+)?[smhd]", text):
        return now + seconds_of(text, option)
    else:
        with contextlib.suppress(ValueError):
            return datetime.fromisoformat(text).timestamp()
    raise ConfigError(f"{option} {text}: expected a time such as 18:00, 2026-12-31 18:00 or 6h")


def numbers(text: str, option: str) -> list[int]:
    """The whole numbers of a list such as ``0,1,1,0``."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} {text}: expected whole numbers with commas between them") from None


def devices_of(text: str, file: Path | None, emulate: str | None, scale: float | None) -> Devices:
    """``--devices``, with what ``--device-file`` and ``--emulate`` say of their types."""
    return devices_in(pools_of(text), file, emulate, scale)


def device_type_of(text: str, devices: str | None = None) -> str:
    """``--device-type``; where it is left to VirtualFlow, *devices* that are named ``cpu`` are cores."""
    known = (AUTO, CPU, *ACCELERATORS)
    if text not in known:
        raise ConfigError(f"--device-type {text}: expected {', '.join(known[:-1])} or {known[-1]}")
    if text != AUTO or devices is None or is_number(devices):
        return text
    return CPU if all(pool.device_type.split("@")[0] == CPU for pool in pools_of(devices)) else AUTO


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
        emulated_type = device_files.of_type(pool.device_type, contents, workload, scale)
        if emulated_type is not None:
            by_type[pool.device_type] = emulated_type
    emulated = {name: device.to_json() for name, device in emulation.slowed(names, by_type, contents).items()}
    return Devices(tuple(pools), names, emulated)


def workload_of(name: str | None, folder: Path | None) -> Workload:
    """A built-in workload, the profiles in a folder, or those last made for a script."""
    if folder is not None:
        return profile_files.read_all(folder)
    if name is None:
        raise ConfigError(
            "give the workload: --workload NAME (a built-in one, or a script that was profiled), or --profiles DIR"
        )
    if name in BUILT_IN:
        return profile_files.built_in(name)
    folder = profiles_of(name)
    if not folder.is_dir():
        raise ProfileError(
            f"there is no workload {name!r}. Built in: {', '.join(BUILT_IN)}. For a script of yours, `vf profile "
            f"{Path(name).stem}.py` makes its profiles."
        )
    return profile_files.read_all(folder)


def staged_workload_of(name: str | None, folder: Path | None) -> StagedWorkload | None:
    """The stage profiles in a folder, or those last made for a script; None if its model is not cut."""
    if folder is None and (name is None or name in BUILT_IN):
        return None
    where = folder if folder is not None else profiles_of(str(name))
    return profile_files.read_stages(where) if where.is_dir() and profile_files.are_staged(where) else None


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
    if profile_files.are_staged(where):
        return None  # a grid of cells, not a mapping of whole virtual nodes
    workload = profile_files.read_all(where)
    for name in types:
        if len(types) > 1 or name in workload.profiles:
            workload.profile(name)
    return workload if types <= workload.profiles.keys() else None
