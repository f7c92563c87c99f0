"""``vf submit``, ``queue`` and what can be done to a job of the manager's."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.live import Live
from rich.table import Column, Table

from virtualflow.cli.options import Emulate, Include, TimeScale, tell_left_out
from virtualflow.cli.screen import say, screen
from virtualflow.errors import ConfigError
from virtualflow.job.folder import ENDED
from virtualflow.manager import environment
from virtualflow.manager.client import Client
from virtualflow.program.capture import take
from virtualflow.solver import device_files, profile_files

JobArgument = Annotated[str, typer.Argument(help="The job's id, as `vf submit` printed it.", metavar="JOB")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
WIDTH = 170  # of the table, where the terminal does not say, or says less: a line may wrap, a word is never cut
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def submit(
    script: Annotated[Path, typer.Argument(help="The training script.", metavar="SCRIPT")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its own arguments.", metavar="ARGS")] = None,
    name: Annotated[str, typer.Option(help="A name for the job; the script's name by default.")] = "",
    priority: Annotated[float, typer.Option(help="A larger one means more devices, or an earlier turn.")] = 1.0,
    demand: Annotated[int, typer.Option(help="The number of devices that the job asks for.", metavar="N")] = 1,
    least: Annotated[int, typer.Option("--min", help="Wait rather than run on fewer devices.", metavar="N")] = 1,
    virtual_nodes: Annotated[
        int | None, typer.Option(help="The script's virtual nodes, if you know: it then starts on all its devices.")
    ] = None,
    expect: Annotated[
        str | None, typer.Option(help="The expected run time on its full demand, such as 90m or 2h.", metavar="TIME")
    ] = None,
    retries: Annotated[int, typer.Option(help="How often to retry if the script fails.")] = 0,
    checkpoint_every: Annotated[int, typer.Option(help="Steps between automatic checkpoints; 0 for none.")] = 0,
    include: Include = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            help="A variable that the job gets besides those that programs need to run (PATH, PYTHON*, CUDA_*, ...). "
            "May be repeated.",
            metavar="NAME[=VALUE]",
        ),
    ] = None,
    emulate: Emulate = None,
    time_scale: TimeScale = None,
    wait: Annotated[bool, typer.Option("--wait", help="Return when the job has ended, with its exit code.")] = False,
    as_json: AsJson = False,
) -> None:
    """Submit a script to the manager, with copies of its modules, and its folder, interpreter and variables."""
    client = Client.find()
    taken = take(script, include=include or (), arguments=arguments or (), waits=True)
    tell_left_out(taken.program)
    body: dict[str, Any] = {
        "script": str(script.resolve()),
        "modules": taken.modules,
        "arguments": arguments or [],
        "directory": str(Path.cwd()),
        "environment": environment.chosen(os.environ, env or ()),
        "interpreter": sys.executable,
        "name": name,
        "priority": priority,
        "demand": demand,
        "min": least,
        "virtual_nodes": virtual_nodes,
        "expect_seconds": _seconds(expect) if expect is not None else None,
        "retries": retries,
        "checkpoint_every": checkpoint_every,
        "emulated": _emulated(emulate, time_scale or 1.0) if emulate is not None else {},
    }
    job_id = client.post("/api/jobs", **body)["id"]
    print(json.dumps({"id": job_id}) if as_json else f"job {job_id}", flush=True)
    if wait:
        raise typer.Exit(_wait(client, job_id))


def queue(
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", help="Keep the table up to date until Ctrl-C.")] = False,
) -> None:
    """Show the manager's jobs: running, waiting, and the last ones that have ended."""
    client = Client.find()
    if as_json:
        print(json.dumps(client.get("/api/jobs"), indent=2))
    elif not watch:
        screen(width=max(screen().width, WIDTH)).print(_table(client.get("/api/jobs")))
        for trouble in client.get("/api/state")["cluster"]["troubles"]:
            print(f"warning: {trouble}", file=sys.stderr)
    else:
        try:
            with Live(_table(client.get("/api/jobs")), console=screen(), refresh_per_second=4) as live:
                while True:
                    time.sleep(0.5)
                    live.update(_table(client.get("/api/jobs")))
        except KeyboardInterrupt:
            return


def describe(job: JobArgument, as_json: AsJson = False) -> None:
    """Show everything about a job of the manager."""
    facts = Client.find().get(f"/api/jobs/{job}")
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for key, value in facts.items():
        if key not in ("events", "failure", "workers", "mapping") and value not in (None, "", []):
            table.add_row(key.replace("_", " "), _told(value))
    for device, nodes in facts["mapping"].items():
        table.add_row(f"on {device}", "virtual nodes " + " ".join(map(str, nodes)))
    console = screen(highlight=False)
    console.print(table)
    for event in facts["events"][-10:]:
        pause = f"; stood still for {event['total_pause_ms']:.0f} ms" if event["pause_ms"] is not None else ""
        when = time.strftime("%H:%M:%S", time.localtime(event["time"]))
        console.print(f"{when}  step {event['step']}  {event['text']}{pause}")
    if facts["failure"]:
        console.print(f"\n{facts['failure']}")


def priority(
    job: JobArgument, value: Annotated[float, typer.Argument(help="A number above 0.", metavar="PRIORITY")]
) -> None:
    """Change a job's priority."""
    Client.find().post(f"/api/jobs/{job}/priority", priority=value)


def pause(job: JobArgument) -> None:
    """Stop a job with a checkpoint and release its devices, until `vf resume`."""
    Client.find().post(f"/api/jobs/{job}/pause")


def resume(job: JobArgument) -> None:
    """Continue a paused job."""
    Client.find().post(f"/api/jobs/{job}/resume")


def cancel(job: JobArgument) -> None:
    """End a job of the manager. It can't be resumed."""
    Client.find().post(f"/api/jobs/{job}/cancel")


def devices(
    drain: Annotated[str | None, typer.Option(help="Take this device out; jobs continue without it.")] = None,
    give_back: Annotated[str | None, typer.Option("--return", help="Put this device back.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the manager's devices and the jobs on them."""
    client = Client.find()
    for device, verb in ((drain, "drain"), (give_back, "return")):
        if device is not None:
            client.post(f"/api/devices/{device}/{verb}")
    listed = client.get("/api/devices")
    if as_json:
        print(json.dumps(listed, indent=2))
        return
    table = Table("device", "type", "machine", "job", box=box.SIMPLE, pad_edge=False)
    for each in listed:
        job = "(taken out)" if each["lost"] else each["job"] or "(idle)"
        table.add_row(each["name"], each["type"], str(each["machine"]), job)
    screen().print(table)


def _emulated(workload: str, scale: float) -> dict[str, dict[str, Any]]:
    """All device types that the workload has profiles of."""
    known = profile_files.built_in(workload)
    found = {name: device_files.of_type(name, {}, known, scale) for name in known.profiles}
    return {name: each.to_json() for name, each in found.items() if each is not None}


def _wait(client: Client, job_id: str) -> int:
    while True:
        job = client.get(f"/api/jobs/{job_id}")
        if job["state"] in ENDED:
            if job["failure"]:
                say(job["failure"], sys.stderr)
            return 0 if job["state"] == "DONE" else 1
        time.sleep(0.2)


def _table(jobs: list[dict[str, Any]]) -> Table:
    names = ("PRIO", "STATE", "DEVICES", "VN/DEV", "STEP", "LOSS", "EX/S", "QUEUED", "RUN", "ETA", "RESIZES")
    whole = [Column(name, no_wrap=True) for name in ("ID", "NAME", *names)]
    table = Table(*whole, Column("REASON", overflow="fold"), box=box.SIMPLE, pad_edge=False)
    for job in jobs:
        nodes = sorted({len(each) for each in job["mapping"].values()})
        cells = (
            job["id"],
            job["name"],
            f"{job['priority']:g}",
            job["state"],
            f"{len(job['devices'])}/{job['want']}",
            "-".join(map(str, nodes)),
            f"{job['step']}/{job['steps']}" if job["steps"] else str(job["step"]),
            f"{job['loss']:.4f}" if job["loss"] is not None else "",
            f"{job['examples_per_second']:.0f}" if job["examples_per_second"] is not None else "",
            _time(job["queued_seconds"]),
            _time(job["run_seconds"]),
            _time(job["eta_seconds"]) if job["eta_seconds"] is not None else "",
            str(job["resizes"]),
            job["reason"],
        )
        table.add_row(*cells)
    return table


def _told(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) and value < 1e6 else str(value)


def _time(seconds: float) -> str:
    whole = int(seconds)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d}"
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _seconds(text: str) -> float:
    """``90``, ``90s``, ``15m``, ``2h`` or ``1d``."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)", text)
    if match is None:
        raise ConfigError(f"--expect {text}: expected a time such as 90s, 15m, 2h or 1d")
    return float(match[1]) * _UNITS[match[2]]
