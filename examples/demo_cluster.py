"""The last part of `make demo`: three jobs share four devices, under an elastic and under a static scheduler.

As in the paper's trace of three jobs, the first and the last one want all devices, the second wants half of them, and
each has a higher priority than those before. The last one comes when the static scheduler has just given devices to the
second; under the elastic one it comes at the same time. The devices are emulated: two cores play four V100s by waiting.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from virtualflow.core.devices import parse_pools
from virtualflow.dashboard import page, simulation
from virtualflow.events import EpochEnded, read_events
from virtualflow.manager.client import Client
from virtualflow.sim import live_run, metrics
from virtualflow.sim.compare import side_by_side
from virtualflow.sim.result import Run

SCRIPT = Path(__file__).with_name("digits_resnet.py")
DEVICES = "V100:4"
# A node of 8 examples takes 0.12 s, as a ResNet-56 on a V100 would, but for the scale: long enough for slow cores.
EMULATION = ("--emulate", "resnet56", "--time-scale", "6")
STATIC, ELASTIC = "priority", "wfs"
POLICIES = {STATIC: "static", ELASTIC: "elastic"}
PATIENCE_SECONDS = 300.0

console = Console(highlight=False)


@dataclass(frozen=True)
class Job:
    """What is submitted."""

    name: str
    demand: int
    priority: int
    virtual_nodes: int  # of 8 examples
    epochs: int

    def arguments(self) -> list[object]:
        asks = ["--name", self.name, "--demand", self.demand, "--priority", self.priority]
        sizes = ["--batch-size", 8 * self.virtual_nodes, "--virtual-nodes", self.virtual_nodes]
        return [*asks, "--virtual-nodes", self.virtual_nodes, SCRIPT, *sizes, "--epochs", self.epochs]


LOW, MIDDLE, HIGH = JOBS = (Job("low", 4, 1, 8, 1), Job("middle", 2, 5, 4, 1), Job("high", 4, 10, 8, 3))
MIDDLE_SECONDS = 2.0  # after the first one


@dataclass(frozen=True)
class Outcome:
    """What one scheduler made of the jobs."""

    run: Run
    digests: dict[str, str]  # by job

    @property
    def urgent_seconds(self) -> float:
        """How long the job of the highest priority took, from its submit to its end."""
        return next(job.jct_seconds for job in self.run.jobs if job.job.id == HIGH.name)

    @property
    def arrival_seconds(self) -> float:
        """When that job came."""
        return next(job.job.arrival_seconds for job in self.run.jobs if job.job.id == HIGH.name)


def main() -> None:
    parser = argparse.ArgumentParser(description="Three jobs on four emulated devices, under two schedulers.")
    parser.add_argument("--out", type=Path, default=Path("out"), help="where the page goes (default: %(default)s)")
    share(parser.parse_args().out)


def share(out: Path) -> None:
    """Run the jobs under both schedulers, and print the results."""
    wants = ", ".join(f"{job.name} wants {job.demand}" for job in JOBS)
    console.print(f"\n[bold]A cluster[/]: three jobs on four emulated devices. {wants}; priorities rise.")
    static = _play(STATIC, None)
    found = {STATIC: static, ELASTIC: _play(ELASTIC, static.arrival_seconds)}
    console.print(_table(found))
    for job in JOBS:
        digests = {outcome.digests[job.name] for outcome in found.values()}
        verdict = "[green]equal in both[/]" if len(digests) == 1 else "[red]NOT EQUAL[/]"
        console.print(f"  {job.name:6}  digest {min(digests)[:12]}  {verdict}")
        if len(digests) > 1:
            sys.exit("The demo ends here, because the number of devices has changed a result.")
    out.mkdir(parents=True, exist_ok=True)
    report = out / "demo-cluster.html"
    runs = side_by_side({f"{policy} ({POLICIES[policy]})": outcome.run for policy, outcome in found.items()})
    report.write_text(page.standalone(simulation.of(runs, parse_pools(DEVICES), "make demo")), encoding="utf-8")
    console.print(f"\nWho had which devices is on a page: {report}")


def _play(policy: str, arrival_seconds: float | None) -> Outcome:
    """Submit each job in its time, the last one when the first has ended or at *arrival_seconds*; wait for all."""
    console.print(f"\n[cyan]vf cluster up --devices {DEVICES} --policy {policy}[/]  ({POLICIES[policy]})")
    with tempfile.TemporaryDirectory() as name, _manager(Path(name), policy) as client:
        begun = time.monotonic()
        ids = {LOW.name: _submit(Path(name), LOW)}
        _follow(client, begun, lambda jobs: time.monotonic() - begun >= MIDDLE_SECONDS)
        ids[MIDDLE.name] = _submit(Path(name), MIDDLE)
        if arrival_seconds is None:
            _follow(client, begun, lambda jobs: jobs[0]["state"] == "DONE" and jobs[1]["devices"])
        else:
            _follow(client, begun, lambda jobs: time.monotonic() - begun >= arrival_seconds)
        ids[HIGH.name] = _submit(Path(name), HIGH)
        _follow(client, begun, lambda jobs: all(job["state"] == "DONE" for job in jobs))
        run = live_run.run_of(client.get("/api/state"), client.get("/api/history"))
        return Outcome(run, {job: _digest(Path(name) / "jobs" / job_id) for job, job_id in ids.items()})


def _submit(home: Path, job: Job) -> str:
    """The job's id."""
    console.print(f"[cyan]vf submit --demand {job.demand} --priority {job.priority} --name {job.name} ...[/]")
    return str(json.loads(_vf(home, "submit", "--json", *job.arguments()))["id"])


def _follow(client: Client, begun: float, until: Callable[[list[dict[str, Any]]], bool]) -> None:
    """Tell whenever devices change hands, until something has happened."""
    told = ""
    while True:
        jobs = client.get("/api/jobs")
        for job in jobs:
            if job["state"] in ("FAILED", "CANCELLED"):
                sys.exit(f"The demo ends here, because job {job['name']} has {job['state'].lower()}: {job['reason']}")
        now = "   ".join(f"{job['name']} {_doing(job)}" for job in jobs)
        if now != told:
            console.print(f"  {time.monotonic() - begun:3.0f} s   {now}")
            told = now
        if until(jobs):
            return
        if time.monotonic() - begun > PATIENCE_SECONDS:
            sys.exit(f"The demo ends here, because its jobs take longer than {PATIENCE_SECONDS:.0f} s.")
        time.sleep(0.2)


def _doing(job: dict[str, Any]) -> str:
    if job["state"] == "DONE":
        return "[green]done[/]"
    return f"on [bold]{len(job['devices'])}[/]" if job["devices"] else "[yellow]waits[/]"


def _table(found: dict[str, Outcome]) -> Table:
    table = Table(title="\nThe same jobs under both", title_style="bold", title_justify="left")
    for heading in ("", "makespan", "JCT, highest priority", "utilisation"):
        table.add_column(heading, justify="right" if heading else "left")
    figures = {policy: metrics.of(outcome.run) for policy, outcome in found.items()}
    for policy, outcome in found.items():
        seconds = [figures[policy].makespan_seconds, outcome.urgent_seconds]
        cells = [*(f"{each:.1f} s" for each in seconds), f"{figures[policy].utilization:.0%}"]
        table.add_row(f"{policy} ({POLICIES[policy]})", *cells, end_section=policy == ELASTIC)
    shorter = figures[ELASTIC].makespan_seconds / figures[STATIC].makespan_seconds - 1
    sooner = found[ELASTIC].urgent_seconds / found[STATIC].urgent_seconds - 1
    table.add_row("", f"{shorter:+.0%}", f"{sooner:+.0%}", "")
    return table


def _digest(folder: Path) -> str:
    return [event.digest for event in read_events(folder / "events.jsonl") if isinstance(event, EpochEnded)][-1]


@contextmanager
def _manager(home: Path, policy: str) -> Iterator[Client]:
    _vf(home, "cluster", "up", "--devices", DEVICES, "--policy", policy, *EMULATION)
    try:
        yield Client.in_folder(home / "cluster")
    finally:
        _vf(home, "cluster", "down")


def _vf(home: Path, *arguments: object) -> str:
    """What the `vf` of this Python prints, with *home* for its manager and jobs."""
    command = [sys.executable, "-m", "virtualflow.cli.main", *map(str, arguments)]
    environment = {**os.environ, "VF_HOME": str(home)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    if done.returncode:
        sys.exit(f"The demo ends here, because `vf {arguments[0]}` failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
