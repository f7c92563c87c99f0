"""``vf submit``, ``queue`` and what can be done to a job of the manager's."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from virtualflow.cli.job_options import SubmitOptions, TermOptions
from virtualflow.cli.job_table import console, job_table, moment, views_of
from virtualflow.cli.jobs import JobArgument, Wide, keep_showing, print_facts
from virtualflow.cli.memory import Copies, NodeMemory, StatedMemory, needs_of
from virtualflow.cli.option_groups import with_groups
from virtualflow.cli.options import AsModule, Emulate, Include, TimeScale, moment_of, program_of, warn_left_out
from virtualflow.cli.screen import print_line, screen
from virtualflow.cli.sweep import submit_all
from virtualflow.cli.sweeps import combinations
from virtualflow.cli.users import owner_here
from virtualflow.core.job_state import ENDED, JobState
from virtualflow.core.sizes import size_text
from virtualflow.errors import ConfigError, ManagerError
from virtualflow.manager import environment
from virtualflow.manager.client import Client
from virtualflow.program.capture import take
from virtualflow.solver import device_files, profile_files

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@with_groups
def submit(
    script: Annotated[Path, typer.Argument(help="The training script.", metavar="SCRIPT")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its own arguments.", metavar="ARGS")] = None,
    module: AsModule = False,
    *,
    terms: TermOptions,
    job: SubmitOptions,
    memory: StatedMemory = None,
    node_memory: NodeMemory = None,
    copies: Copies = None,
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
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            help="A job for each value, and for each combination if repeated, with --NAME VALUE after ARGS or in place "
            "of {NAME} there; or a CSV file with a row for each job.",
            metavar="NAME=V,V|FILE",
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Return when the job has ended, with its exit code.")] = False,
    as_json: AsJson = False,
) -> None:
    """Submit a script to the manager, with copies of its modules, and its folder, interpreter and variables."""
    client = Client.find()
    file, full_name = program_of(script, as_module=module)
    taken = take(file, include=include or (), arguments=arguments or (), waits=True, module=full_name)
    warn_left_out(taken.program)
    needs = needs_of(memory, node_memory, copies)
    body: dict[str, Any] = {
        "script": str(file.resolve()),
        "modules": taken.modules,
        "arguments": arguments or [],
        "directory": str(Path.cwd()),
        "environment": environment.chosen(os.environ, env or ()),
        "interpreter": sys.executable,
        "memory": asdict(needs) if needs is not None else None,
        "emulated": _emulated(emulate, time_scale or 1.0) if emulate is not None else {},
    }
    body |= job.described() | terms.terms()
    body["owner"] = terms.owner if terms.owner is not None else owner_here(client)
    body["after"] = [job_id for name in body["after"] for job_id in _followed(client, name)]
    if sweep:
        ids = submit_all(client, body, combinations(sweep), as_json=as_json)
    else:
        ids = [client.post("/api/jobs", **body)["id"]]
        print(json.dumps({"id": ids[0]}) if as_json else f"job {ids[0]}", flush=True)
    if wait:
        raise typer.Exit(max([_wait(client, job_id) for job_id in ids]))


def queue(
    unfold: Annotated[bool, typer.Option("--unfold", help="Show each job of a sweep.")] = False,
    mine: Annotated[bool, typer.Option("--mine", help="Only the jobs that you have submitted.")] = False,
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", help="Keep the table up to date until Ctrl-C.")] = False,
    wide: Wide = False,
) -> None:
    """Show the manager's jobs: running, waiting, and the last ones that have ended."""
    client = Client.find()
    me = owner_here(client) if mine else ""

    def jobs() -> list[dict[str, Any]]:
        return [job for job in client.get("/api/jobs") if not mine or job["owner"] == me]

    if as_json:
        print(json.dumps(jobs(), indent=2))
        return
    if watch:
        keep_showing(lambda: job_table(views_of(jobs()), wide=wide, fold=not unfold), wide=wide)
        return
    console(wide=wide).print(job_table(views_of(jobs()), wide=wide, fold=not unfold))
    for problem in client.get("/api/state")["cluster"]["troubles"]:
        print_line(f"warning: {problem}", sys.stderr)


def describe(job: JobArgument, as_json: AsJson = False) -> None:
    """Show everything about a job of the manager."""
    try:
        client = Client.find()
    except ManagerError as error:
        raise ManagerError(f"{error} `vf status {job}` shows a job of `vf run`.") from None
    facts = client.get(f"/api/jobs/{client.job_id(job)}")
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        print_facts(facts)


def priority(
    job: JobArgument, value: Annotated[float, typer.Argument(help="A number above 0.", metavar="PRIORITY")]
) -> None:
    """Change the priority of a job, or of all jobs of a sweep."""
    for job_id in _jobs_of(job):
        view = _ask(job_id, "priority", priority=value)
        print(f"job {view['id']} has priority {view['priority']:g}")


def pause(job: JobArgument) -> None:
    """Stop a job, or all of a sweep, with a checkpoint and release the devices, until `vf resume`."""
    for job_id in _jobs_of(job):
        view = _ask(job_id, "pause")
        how = "is paused" if view["state"] == JobState.PAUSED else "stops at its next step boundary, with a checkpoint"
        print(f"job {view['id']} {how}; `vf resume {view['id']}` continues it")


def resume(
    job: JobArgument,
    from_checkpoint: Annotated[
        str | None,
        typer.Option(
            help="Continue from this checkpoint instead of the last one: a step of the job, or a file. Later ones are "
            "set aside.",
            metavar="STEP|FILE",
        ),
    ] = None,
) -> None:
    """Continue a paused job, or all paused jobs of a sweep."""
    if from_checkpoint is None:
        members = _jobs_of(job)
        for job_id in members if members != [job] else ():
            if Client.find().get(f"/api/jobs/{job_id}")["state"] == JobState.PAUSED:
                print(f"job {job_id} continues: its state is {_ask(job_id, 'resume')['state']}")
        if members != [job]:
            return
        view, source = _ask(job, "resume"), ""
    else:
        is_step = from_checkpoint.isdecimal()
        choice = from_checkpoint if is_step else str(Path(from_checkpoint).absolute())
        view, source = _ask(job, "resume", from_checkpoint=choice), f" from {'step ' if is_step else ''}{choice}"
    print(f"job {view['id']} continues{source}: its state is {view['state']}")


def cancel(job: JobArgument) -> None:
    """End a job of the manager, or all jobs of a sweep. They can't be resumed."""
    for job_id in _jobs_of(job):
        view = _ask(job_id, "cancel")
        print(f"job {view['id']} {'is cancelled' if view['state'] == JobState.CANCELLED else 'is being cancelled'}")


def _followed(client: Client, name: str) -> list[str]:
    """A job, or all jobs of a sweep."""
    members = [job["id"] for job in client.get("/api/jobs") if job["sweep"] == name]
    return members or [client.job_id(name)]


def _jobs_of(name: str) -> list[str]:
    """A job; or the jobs of a sweep that have not ended."""
    members = [job for job in Client.find().get("/api/jobs") if job["sweep"] == name]
    return [job["id"] for job in members if job["state"] not in ENDED] if members else [name]


def _ask(job: str, verb: str, **body: Any) -> dict[str, Any]:
    """Have the manager do something to a job; return the job after that."""
    client = Client.find()
    view: dict[str, Any] = client.post(f"/api/jobs/{client.job_id(job)}/{verb}", **body)
    return view


def devices(
    drain: Annotated[
        str | None, typer.Option(help="Take this device out; jobs continue without it.", metavar="DEVICE")
    ] = None,
    begin: Annotated[
        str | None,
        typer.Option("--from", help="--drain: not now, but at 22:00, 2026-12-31 22:00, or in 6h.", metavar="TIME"),
    ] = None,
    until: Annotated[str | None, typer.Option(help="--drain: put it back at this time.", metavar="TIME")] = None,
    give_back: Annotated[
        str | None,
        typer.Option("--return", help="Put this device back, and forget when it was to be out.", metavar="DEVICE"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the manager's devices and the jobs on them.

    Example: vf devices --drain cpu:0 --from 22:00 --until 23:30
    """
    client = Client.find()
    if (begin is not None or until is not None) and (drain is None or until is None):
        raise ConfigError("--from and --until say when --drain DEVICE takes it out: give --until, too")
    if drain is not None and until is not None:
        start = moment_of(begin, "--from", time.time()) if begin is not None else time.time()
        client.post(f"/api/devices/{drain}/maintenance", begin=start, end=moment_of(until, "--until", start))
    elif drain is not None:
        client.post(f"/api/devices/{drain}/drain")
    if give_back is not None:
        client.post(f"/api/devices/{give_back}/return")
    listed = client.get("/api/devices")
    if as_json:
        print(json.dumps(listed, indent=2))
        return
    table = Table("device", "type", "memory", "machine", "job", box=box.SIMPLE, pad_edge=False)
    for device in listed:
        job = "(taken out)" if device["lost"] else device["job"] or "(idle)"
        if device["maintenance"] is not None:
            begins, ends = map(moment, device["maintenance"])
            job += f", back at {ends}" if device["lost"] else f", out from {begins} to {ends}"
        memory = size_text(device["memory"]) if device["memory"] is not None else ""
        table.add_row(device["name"], device["type"], memory, str(device["machine"]), job)
    screen().print(table)


def _emulated(workload: str, scale: float) -> dict[str, dict[str, Any]]:
    """All device types that the workload has profiles of."""
    known = profile_files.built_in(workload)
    by_type = {name: device_files.of_type(name, {}, known, scale) for name in known.profiles}
    return {name: emulated.to_json() for name, emulated in by_type.items() if emulated is not None}


def _wait(client: Client, job_id: str) -> int:
    while True:
        job = client.get(f"/api/jobs/{job_id}")
        if job["state"] in ENDED:
            if job["failure"]:
                print_line(job["failure"], sys.stderr)
            return 0 if job["state"] == JobState.DONE else 1
        time.sleep(0.2)
