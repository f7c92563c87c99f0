"""``vf profile``: how fast a script is on each device type, and what communication costs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from virtualflow.backends.local import LocalBackend
from virtualflow.cli.files import check_folder
from virtualflow.cli.options import (
    DeviceFile,
    Emulate,
    Listen,
    TimeScale,
    TokenFile,
    device_type_of,
    devices_of,
    token_file_for,
)
from virtualflow.cli.screen import screen
from virtualflow.cli.stage_profiles import file_of, report_stages, write_profile, write_stages
from virtualflow.core import profile as profiles
from virtualflow.core.device_choice import AUTO
from virtualflow.core.profile import BEYOND, Communication, Point, Profile, Workload
from virtualflow.core.sizes import parse_size
from virtualflow.core.stage_profile import Link
from virtualflow.core.wording import counted
from virtualflow.errors import ConfigError, LaunchError
from virtualflow.profiling.bench import Bench, CommunicationCosts, InterruptedMeasurement, JoinAddress, Show
from virtualflow.solver import profile_files
from virtualflow.system.home import profiles_of
from virtualflow.system.identity import identity
from virtualflow.system.text import visible


def profile(
    script: Annotated[Path, typer.Argument(help="The training script.", metavar="SCRIPT")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its own arguments.", metavar="ARGS")] = None,
    device_type: Annotated[
        str | None, typer.Option(help="The type of this machine's devices, such as V100.", metavar="TYPE")
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(help="The devices of this machine, by type; communication is measured with them.", metavar="LIST"),
    ] = None,
    device_file: DeviceFile = None,
    emulate: Emulate = None,
    time_scale: TimeScale = None,
    memory_limit: Annotated[
        str | None, typer.Option(help="Memory of a CPU device, such as 2G: larger virtual nodes fail.", metavar="SIZE")
    ] = None,
    largest: Annotated[int, typer.Option(help="The largest node size to try.", min=1, metavar="N")] = 4096,
    minutes: Annotated[
        float,
        typer.Option(
            help="The time limit for each device type, and for waiting for other machines.", min=0.05, metavar="M"
        ),
    ] = 10.0,
    communication: Annotated[
        bool,
        typer.Option("--communication/--no-communication", help="Also measure communication between these devices."),
    ] = True,
    machines: Annotated[
        int,
        typer.Option(
            help="Also measure communication between this many machines: this one, and others that join.",
            min=1,
            metavar="N",
        ),
    ] = 1,
    listen: Listen = None,
    token_file: TokenFile = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A folder for the profiles.", metavar="DIR")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the profiles as JSON.")] = False,
) -> None:
    """Measure SCRIPT on one device of each type, over node sizes 1, 2, 3, 4, 6, 8, 12, ... until memory is full.

    A model in stages is measured stage by stage, one on the device at a time: time, memory, and what the next one gets.

    The profile is a file for people and programs; `vf solve --workload SCRIPT` and `vf run` find it by the script.

    With --machines 3 --listen 10.0.0.5:29400 --token-file token, communication between machines is measured first: it
    waits until `vf join 10.0.0.5:29400 --token-file token` runs on two more, and lets them go when it is done.
    """
    if not script.is_file():
        raise LaunchError(f"there is no script {script}. Give a path relative to this folder, or a full one.")
    if (device_type is None) == (devices is None):
        raise ConfigError("give either --device-type TYPE, or --devices with all types that are here")
    if (machines > 1) != (listen is not None):
        raise ConfigError(
            "--machines N (2 or more) and --listen HOST:PORT go together: the other machines join at that address"
        )
    join = JoinAddress(listen, token_file_for(listen, token_file, identity())) if listen is not None else None
    folder = output or profiles_of(str(script))
    check_folder(folder)
    named = devices or f"{device_type}:1"
    known = devices_of(named, device_file, emulate, time_scale)
    limit = parse_size(memory_limit, "--memory-limit") if memory_limit else None
    want = {"what": "node sizes", "largest": largest, "seconds": 60 * minutes, "memory_limit": limit}
    console = screen(stderr=True, highlight=False)
    by_devices: CommunicationCosts = ()
    by_machines: CommunicationCosts = ()
    with LocalBackend() as backend:
        on = device_type_of(AUTO, named)
        bench = Bench(script, tuple(arguments or ()), known, on, backend, partial(_line, console), 60 * minutes)
        try:
            if join is not None:  # first, while the person who starts the other machines is there
                by_machines = bench.between_machines(machines, join)
            results = {pool.device_type: bench.node_sizes(pool.device_type, want) for pool in known.pools}
            is_staged = any("stages" in result for result in results.values())
            if communication and len(known.names) > 1 and not is_staged:
                by_devices = bench.between_devices()
            link = bench.between_stages() if communication and len(known.names) > 1 and is_staged else Link()
        except InterruptedMeasurement as interrupted:
            console.print("interrupted: all workers have ended")
            raise typer.Exit(interrupted.code) from None
    if is_staged:
        report_stages(console, write_stages(folder, script.stem, results, link), as_json=as_json)
        return
    costs = Communication(by_devices, by_machines)
    written = []
    for name, result in results.items():
        measured = _profile(name, result)
        path = file_of(folder, name)
        write_profile(path, profiles.to_json(Workload(script.stem, {name: measured}, costs)))
        written.append((path, measured))
    if as_json:
        print(json.dumps([profiles.to_json(profile_files.read(path)) for path, _ in written], indent=1))
        return
    for path, measured in written:
        _show(console, measured)
        console.print(f"  written to {path}", soft_wrap=True)


@contextmanager
def _line(console: Console, title: str) -> Iterator[Show]:
    """One line with the progress; where that can't be drawn over, a line for each new text."""
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(visible(title))
        shown = title

        def show(text: str | None) -> None:
            nonlocal shown
            if text is None or text == shown:
                return
            shown = text
            progress.update(task, description=visible(text))
            if not console.is_terminal:
                console.print(text, soft_wrap=True)

        yield show


def _show(console: Console, measured: Profile) -> None:
    best, last = max(measured.points, key=lambda point: point.examples_per_second), measured.points[-1]
    speed = f"best {best.examples_per_second:.4g} examples/s at node size {best.node_size}"
    console.print(Text.assemble((measured.device_type, "bold"), f": {speed}"))
    console.print(f"  largest node size: {measured.largest}; {BEYOND[measured.ended_by]}", soft_wrap=True)
    if last.loading_seconds is not None and last.loading_seconds > last.seconds / 2:
        slow_loading = (
            f"  loading {counted(last.node_size, 'example')} takes {last.loading_seconds:.3g} s, "
            f"computing {last.seconds:.3g} s"
        )
        console.print(slow_loading, style="yellow", soft_wrap=True)


def _profile(device_type: str, result: dict[str, Any]) -> Profile:
    points = tuple(Point(**point) for point in result["points"])
    return Profile(
        device_type, points, max(0.0, result["update_seconds"]), result["facts"], "vf profile", result["ended_by"]
    )
