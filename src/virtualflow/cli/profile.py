"""``vf profile``: how fast a script is on each device type, and what communication costs."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from virtualflow.cli.options import DeviceFile, Devices, Emulate, TimeScale, devices_of, profiles_of
from virtualflow.core import profile as profiles
from virtualflow.core.devices import type_of
from virtualflow.core.membership import home, new_job_id
from virtualflow.core.profile import Communication, Point, Profile, Workload
from virtualflow.errors import ConfigError, LaunchError
from virtualflow.runtime.folder import JobFolder, JobSpec
from virtualflow.runtime.local import LocalBackend
from virtualflow.runtime.output import LeadOutput
from virtualflow.runtime.serve import run_job

MOST_COUNTS = 4  # of devices, at which communication is measured
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def profile(
    script: Annotated[Path, typer.Argument(help="The training script.", metavar="SCRIPT")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its own arguments.", metavar="ARGS")] = None,
    device_type: Annotated[
        str | None, typer.Option(help="The type of this machine's devices, such as V100.", metavar="TYPE")
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(
            help="All types that are here, and how many: communication is measured with them.", metavar="LIST"
        ),
    ] = None,
    device_file: DeviceFile = None,
    emulate: Emulate = None,
    time_scale: TimeScale = None,
    memory_limit: Annotated[
        str | None, typer.Option(help="Memory of a CPU device, such as 2G: larger virtual nodes fail.", metavar="SIZE")
    ] = None,
    largest: Annotated[int, typer.Option(help="The largest node size to try.", min=1)] = 4096,
    minutes: Annotated[float, typer.Option(help="No device type takes longer than this.", min=0.05)] = 10.0,
    communication: Annotated[
        bool, typer.Option("--communication/--no-communication", help="Measure what communication costs, too.")
    ] = True,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A folder for the profiles.", metavar="DIR")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the profiles as JSON.")] = False,
) -> None:
    """Measure SCRIPT on one device of each type, over node sizes 1, 2, 3, 4, 6, 8, 12, ... until memory is full.

    The profile is a file for people and programs; `vf solve --workload SCRIPT` and `vf run` find it by the script.
    """
    if not script.is_file():
        raise LaunchError(f"there is no script {script}. Give a path relative to this folder, or a full one.")
    if (device_type is None) == (devices is None):
        raise ConfigError("give either --device-type TYPE, or --devices with all types that are here")
    known = devices_of(devices or f"{device_type}:1", device_file, emulate, time_scale)
    limit = _bytes(memory_limit) if memory_limit else None
    want = {"what": "node sizes", "largest": largest, "seconds": 60 * minutes, "memory_limit": limit}
    console = Console(stderr=True, highlight=False)
    costs = Communication()
    with LocalBackend() as backend:
        bench = _Bench(script, tuple(arguments or ()), known, backend)
        if communication and len(known.names) > 1:
            costs = Communication(by_devices=tuple(bench.communication(console)))
        results = {pool.device_type: bench.measured(pool.device_type, want, console) for pool in known.pools}
    folder = output or profiles_of(str(script))
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, result in results.items():
        made = _profile(name, result)
        path = folder / f"{re.sub(r'[^A-Za-z0-9.@_-]', '_', name)}.json"
        path.write_text(json.dumps(profiles.to_json(Workload(script.stem, {name: made}, costs)), indent=1) + "\n")
        written.append((path, made, result))
    if as_json:
        print(json.dumps([profiles.to_json(profiles.read(path)) for path, _, _ in written], indent=1))
        return
    for path, made, result in written:
        best = max(made.points, key=lambda point: point.examples_per_second)
        console.print(
            f"[bold]{made.device_type}[/]: best {best.examples_per_second:.4g} examples/s at node size {best.node_size}"
        )
        if result["out_of_memory"]:
            console.print(f"  memory is full beyond node size {made.largest}")
        if result["overran_waves"]:
            console.print(
                f"  [yellow]{result['overran_waves']} waves took longer here than on the device that they emulate: "
                "these figures are void. Use a smaller model, a larger --time-scale or an idle machine.[/]"
            )
        console.print(f"  written to {path}")


class _Bench:
    """Runs the script as small jobs that are measured."""

    def __init__(self, script: Path, arguments: tuple[str, ...], devices: Devices, backend: LocalBackend) -> None:
        self._script = script
        self._arguments = arguments
        self._devices = devices
        self._backend = backend

    def measured(self, device_type: str, want: dict[str, Any], console: Console) -> dict[str, Any]:
        """Node sizes on one device of a type, with a line for each as it comes."""
        name = next(name for name in self._devices.names if type_of(name) == device_type)
        with _bar(console) as bar:
            task = bar.add_task(f"{device_type}: starting")

            def look(folder: JobFolder) -> None:
                path = folder.path / "profile.jsonl"
                lines = path.read_text().splitlines() if path.exists() else []
                if lines:
                    point = Point(**json.loads(lines[-1]))
                    low, high = point.low or point.seconds, point.high or point.seconds
                    bar.update(
                        task,
                        description=f"{device_type}: node size {point.node_size}, {point.seconds * 1e3:.4g} ms "
                        f"({low * 1e3:.4g} to {high * 1e3:.4g}), {point.examples_per_second:.4g} examples/s",
                    )

            return self._run((name,), None, want, look)

    def communication(self, console: Console) -> list[tuple[int, float]]:
        """What more devices add to a step at node size 1, on the fastest type that there is enough of."""
        everyone = len(self._devices.names)
        counts = sorted({round(2 + (everyone - 2) * part / (MOST_COUNTS - 1)) for part in range(MOST_COUNTS)})
        first = type_of(self._devices.names[0])
        emulated = self._devices.emulated.get(self._devices.names[0])
        seconds = {}
        with _bar(console) as bar:
            task = bar.add_task("communication")
            for count in (1, *(count for count in counts if count > 1)):
                bar.update(task, description=f"communication: {count} device(s)")
                names = tuple(f"{first}:{number}" for number in range(count))
                result = self._run(names, (1,) * count, {"what": "communication"}, emulated=emulated)
                seconds[count] = float(result["step_seconds"])
        return [(count, max(0.0, each - seconds[1])) for count, each in seconds.items() if count > 1]

    def _run(
        self,
        names: tuple[str, ...],
        node_sizes: tuple[int, ...] | None,
        want: dict[str, Any],
        look: Any = lambda folder: None,
        emulated: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        given = dict.fromkeys(names, emulated) if emulated else self._devices.emulated
        job = JobSpec(
            job_id=new_job_id(),
            script=str(self._script),
            arguments=self._arguments,
            devices=names,
            emulated={name: each for name, each in given.items() if name in names and each},
            node_sizes=node_sizes,
            profiling=want,
            replace_lost=False,
        )
        folder = JobFolder(home() / "jobs" / job.job_id)
        folder.create(job)
        shown = LeadOutput() if sys.stdout.isatty() else None
        outcome = run_job(folder, shown, lambda: look(folder), backend=self._backend)
        result = folder.path / "profile.json"
        if outcome.code or not result.exists():
            reason = outcome.failure.text.strip() if outcome.failure else f"it ended with exit code {outcome.code}"
            raise LaunchError(
                f"{self._script} could not be measured: {reason}\nIt must train with a vf.Trainer; `vf run "
                f"{self._script}` shows whether it does."
            )
        contents: dict[str, Any] = json.loads(result.read_text())
        return contents


def _bar(console: Console) -> Progress:
    return Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console)


def _profile(device_type: str, result: dict[str, Any]) -> Profile:
    points = tuple(Point(**point) for point in result["points"])
    facts = result["facts"] | {
        "overran_waves": result["overran_waves"],
        "memory_was_full": bool(result["out_of_memory"]),
    }
    return Profile(device_type, points, result["update_seconds"], facts, "vf profile")


def _bytes(text: str) -> int:
    match = re.fullmatch(r"([0-9.]+)\s*([KMGT]?)i?B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ConfigError(f"--memory-limit {text}: expected a size such as 512M or 2G")
    return int(float(match[1]) * _UNITS[match[2].upper()])
