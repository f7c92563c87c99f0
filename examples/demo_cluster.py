"""The last part of `make demo`: three jobs share four devices, under an elastic and under a static scheduler.

As in the paper's trace of three jobs, the first and the last one want all devices, the second wants half of them, and
each has a higher priority than those before. The devices are emulated: two cores play four V100s by waiting.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from virtualflow.core.devices import parse_pools
from virtualflow.events import EpochEnded, read_events
from virtualflow.runtime import door
from virtualflow.runtime.client import Client
from virtualflow.sim import charts, metrics, recorded
from virtualflow.sim.result import Run

SCRIPT = Path(__file__).with_name("digits_resnet.py")
DEVICES = "V100:4"
# A node of 8 examples takes 0.16 s, as a ResNet-56 on a V100 would, but for the scale: long enough for slow cores.
EMULATION = ("--emulate", "resnet56", "--time-scale", "8")
POLICIES = {"wfs": "elastic: weighted fair shares", "priority": "static priorities"}
PATIENCE_SECONDS = 300.0

console = Console(highlight=False)


@dataclass(frozen=True)
class Job:
    """What is submitted, and when."""

    name: str
    arrival_seconds: float
    demand: int
    priority: int
    virtual_nodes: int  # of 8 examples
    epochs: int

    def arguments(self) -> list[object]:
        asks = ["--name", self.name, "--demand", self.demand, "--priority", self.priority]
        sizes = ["--batch-size", 8 * self.virtual_nodes, "--virtual-nodes", self.virtual_nodes]
        return [*asks, "--virtual-nodes", self.virtual_nodes, SCRIPT, *sizes, "--epochs", self.epochs]


JOBS = (Job("low", 0.0, 4, 1, 8, 1), Job("middle", 2.0, 2, 5, 4, 1), Job("high", 8.0, 4, 10, 8, 3))


@dataclass(frozen=True)
class Outcome:
    """What one scheduler made of the jobs."""

    run: Run
    digests: dict[str, str]  # by job


def main() -> None:
    parser = argparse.ArgumentParser(description="Three jobs on four emulated devices, under two schedulers.")
    parser.add_argument("--out", type=Path, default=Path("out"), help="where the chart goes (default: %(default)s)")
    share(parser.parse_args().out)


def share(out: Path) -> None:
    """Run the jobs under both schedulers, and tell what came of it."""
    wants = ", ".join(f"{job.name} wants {job.demand}" for job in JOBS)
    console.print(f"\n[bold]A cluster[/]: three jobs on four emulated devices. {wants}; priorities rise.")
    found = {policy: _play(policy) for policy in POLICIES}
    console.print(_table(found))
    for job in JOBS:
        digests = {outcome.digests[job.name] for outcome in found.values()}
        verdict = "[green]equal in both[/]" if len(digests) == 1 else "[red]NOT EQUAL[/]"
        console.print(f"  {job.name:6}  digest {min(digests)[:12]}  {verdict}")
        if len(digests) > 1:
            sys.exit("The demo ends here, because the number of devices has changed a result.")
    out.mkdir(parents=True, exist_ok=True)
    picture = out / "demo-cluster.png"
    charts.allocations([outcome.run for outcome in found.values()], parse_pools(DEVICES), picture)
    console.print(f"\nWho had which devices is in {picture}")


def _play(policy: str) -> Outcome:
    """Submit each job in its time, and wait until all have ended."""
    console.print(f"\n[cyan]vf cluster up --devices {DEVICES} --policy {policy}[/]  ({POLICIES[policy]})")
    with tempfile.TemporaryDirectory() as name, _manager(Path(name), policy) as client:
        begun, ids = time.monotonic(), {}
        for job in JOBS:
            time.sleep(max(0.0, begun + job.arrival_seconds - time.monotonic()))
            _vf(Path(name), "submit", *job.arguments())
            ids[job.name] = client.get("/api/jobs")[-1]["id"]
            console.print(f"[cyan]vf submit --demand {job.demand} --priority {job.priority} --name {job.name} ...[/]")
        _follow(client, begun)
        run = recorded.run_of(client.get("/api/state"), client.get("/api/history"))
        return Outcome(run, {job: _digest(Path(name) / "jobs" / job_id) for job, job_id in ids.items()})


def _follow(client: Client, begun: float) -> None:
    """Tell whenever devices change hands, until all jobs have ended."""
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
        if all(job["state"] == "DONE" for job in jobs):
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
    for heading in ("", "makespan", "JCT of the highest priority", "utilisation"):
        table.add_column(heading, justify="right" if heading else "left")
    for policy, outcome in found.items():
        figures = metrics.of(outcome.run)
        (urgent,) = (job.jct_seconds for job in outcome.run.jobs if job.job.id == JOBS[-1].name)
        cells = [f"{figures.makespan_seconds:.1f} s", f"{urgent:.1f} s", f"{figures.utilization:.0%}"]
        table.add_row(f"{policy} ({POLICIES[policy]})", *cells)
    return table


def _digest(folder: Path) -> str:
    return [event.digest for event in read_events(folder / "events.jsonl") if isinstance(event, EpochEnded)][-1]


@contextmanager
def _manager(home: Path, policy: str) -> Iterator[Client]:
    _vf(home, "cluster", "up", "--devices", DEVICES, "--policy", policy, *EMULATION)
    try:
        token = door.read_token(home / "cluster" / "token", create=False).decode()
        yield Client((home / "cluster" / "address").read_text().strip(), token)
    finally:
        _vf(home, "cluster", "down")


def _vf(home: Path, *arguments: object) -> None:
    command = [sys.executable, "-m", "virtualflow.cli.main", *map(str, arguments)]
    done = subprocess.run(
        command, env={**os.environ, "VF_HOME": str(home)}, capture_output=True, text=True, timeout=400
    )
    if done.returncode:
        sys.exit(f"The demo ends here, because `vf {arguments[0]}` failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
