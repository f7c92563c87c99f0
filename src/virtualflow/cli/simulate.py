"""``vf simulate``: what would a scheduler do to these jobs?"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress
from rich.table import Table

from virtualflow.cli.files import check_folder, writing
from virtualflow.cli.options import RoundSeconds, Useful, seconds_of
from virtualflow.cli.screen import screen
from virtualflow.cluster import recorded
from virtualflow.cluster.policies import registry
from virtualflow.cluster.policies.base import Options
from virtualflow.cluster.throughput.model import Throughput
from virtualflow.cluster.throughput.table import GAVEL, GAVEL_ROUND_SECONDS
from virtualflow.cluster.throughput.workloads import paper_speeds
from virtualflow.core.devices import Pool, parse_pools
from virtualflow.dashboard import simulation
from virtualflow.dashboard.page import standalone
from virtualflow.errors import ConfigError
from virtualflow.manager.client import Client
from virtualflow.sim import compare, costs, gavel_table, importers, pollux_applications
from virtualflow.sim.compare import Comparison, Setting, on_machines
from virtualflow.sim.costs import Costs
from virtualflow.sim.engine import ReportProgress
from virtualflow.sim.failures import Failures
from virtualflow.sim.recorded_jobs import Past


def simulate(
    trace: Annotated[
        Path | None, typer.Argument(help="A trace in any known format: see `vf trace`.", metavar="TRACE")
    ] = None,
    from_cluster: Annotated[
        bool, typer.Option("--from-cluster", help="Simulate the manager's own jobs, beside what really happened.")
    ] = False,
    since: Annotated[
        str | None,
        typer.Option(
            help="--from-cluster: the jobs that were there in the last 12h or 7d. Default: 7d.", metavar="TIME"
        ),
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(
            help="The cluster: V100:8, or P100:4+4 for two machines, with commas. With --from-cluster, the manager's.",
            metavar="DEVICES",
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help=f"One or more of {', '.join(registry.BUILT_IN)}, or one of an installed package. Default: wfs; with "
            "--from-cluster, the manager's.",
            metavar="NAME",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(help="The number of traces like this one, for confidence intervals.", min=1, metavar="N")
    ] = 1,
    costs_name: Annotated[
        str,
        typer.Option(
            "--costs",
            help="Resizing costs: measured (VirtualFlow's), none, or paper, with the paper's even mapping.",
            metavar="NAME",
        ),
    ] = "measured",
    rounding: Annotated[
        str, typer.Option("--round", help="wfs: shares of any size, or pow2 as the paper's author did.", metavar="RULE")
    ] = "any",
    useful: Useful = False,
    round_seconds: RoundSeconds = 360.0,
    backfill: Annotated[
        bool, typer.Option("--backfill", help="priority, fifo: small jobs may overtake a blocked one.")
    ] = False,
    table: Annotated[
        Path | None, typer.Option("--throughputs", help="Gavel's table of speeds, for its traces.", metavar="FILE")
    ] = None,
    compat: Annotated[
        str | None,
        typer.Option(
            help="gavel: follow the rules of Gavel's simulator; paper: of the paper's simulation.", metavar="NAME"
        ),
    ] = None,
    machine_size: Annotated[
        int | None, typer.Option(help="Spread each type over machines of N devices.", min=1, metavar="N")
    ] = None,
    failures: Annotated[float, typer.Option(help="Failures of each device per hour.", min=0.0, metavar="RATE")] = 0.0,
    machine_failures: Annotated[
        float, typer.Option(help="Failures of each machine per hour.", min=0.0, metavar="RATE")
    ] = 0.0,
    repair: Annotated[
        float, typer.Option(help="Seconds until a failed device or machine is back.", min=1.0, metavar="S")
    ] = 3600.0,
    seed: Annotated[int, typer.Option(help="The seed of the failures.", metavar="SEED")] = 0,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="A folder for the report: one page, and its figures as JSON.", metavar="FOLDER"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run a trace of jobs under scheduling policies, in virtual time, and compare them.

    A job's speed comes from the profile of its workload, through the solver that real runs use.

    The same command gives the same result, to the bit.

    With --seeds, a generated trace is generated again; the jobs of other traces are shuffled over their arrival times.

    With --from-cluster, the jobs that the manager had are run again under other policies, with
    the speeds that it has learnt. The first rows are what happened, and the manager's policy simulated, so that you see
    how far the simulator can be trusted.

    Examples: vf simulate trace.json --devices V100:8 --policy wfs --policy priority -o report/, and
    vf simulate --from-cluster --policy las
    """
    if output is not None:
        check_folder(output)
    options = Options(rounding, useful, round_seconds, backfill, compat)
    broken = Failures(failures, machine_failures, repair, seed)
    names = list(dict.fromkeys(policy or ()))
    for name in names:
        registry.make(name, options)  # fail at once if one is unknown
    pools = on_machines(parse_pools(devices), machine_size) if devices is not None else ()
    spent = costs.named(costs_name)
    if from_cluster:
        for option, is_given in (("TRACE", trace), ("--throughputs", table), ("--seeds", seeds > 1)):
            if is_given:
                raise ConfigError(f"{option} does not go with --from-cluster: jobs and speeds are the manager's own")
        past = _past(since, spent)
        pools, source, runs = pools or past.recorded.pools, past.trace.source, len(names) + 1
        setting = Setting(pools, past.throughput, spent, options, broken)
        comparison = _with_bar(partial(past.compare, names, setting), len(past.jobs), runs, quiet=as_json)
    else:
        if trace is None or devices is None or since is not None:
            raise ConfigError(
                "a simulation needs a TRACE and --devices. With --from-cluster it is of the jobs that the manager has "
                "had, those of the last week or --since."
            )
        speeds: Throughput = paper_speeds(even=costs_name == costs.PAPER.name)  # its whole system, not half of it
        if table is not None:
            speeds = gavel_table.read(table, whole_steps_seconds=GAVEL_ROUND_SECONDS if compat == GAVEL else None)
        speeds = pollux_applications.beside(speeds)
        setting = Setting(pools, speeds, spent, options, broken)
        loaded, names = importers.read(trace), names or ["wfs"]
        source, runs = loaded.source, len(names) * seeds
        comparison = _with_bar(
            partial(compare.compare, loaded, names, setting, seeds), len(loaded.jobs), runs, quiet=as_json
        )
    if output is not None:
        with writing(output):
            page = _write_report(comparison, pools, source, output)
        screen(stderr=True).print(f"wrote {page}", highlight=False, soft_wrap=True)
    if as_json:
        print(json.dumps(_as_json(comparison)))
    else:
        _print(comparison)


def _past(since: str | None, spent: Costs) -> Past:
    """The manager's jobs of the last week, or *since*."""
    seconds = seconds_of(since or "7d", "--since")
    return Past.of(recorded.from_json(Client.find().get(f"/api/recorded?seconds={seconds:.3f}")), spent)


def _with_bar(run: Callable[[ReportProgress], Comparison], jobs: int, runs: int, *, quiet: bool) -> Comparison:
    """With a bar that counts *jobs*, over all *runs*."""
    every = max(1, jobs // 100)
    console = screen(stderr=True)
    with Progress(console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task("simulating", total=jobs * runs)

        def count(done: int, total: int) -> None:
            if done % every == 0:
                bar.advance(task, every)

        return run(count)


def _write_report(comparison: Comparison, pools: Sequence[Pool], title: str, folder: Path) -> Path:
    """The page that live clusters have, with the simulation in it, and beside it all figures as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(_as_json(comparison), indent=1) + "\n")
    page = folder / "index.html"
    page.write_text(standalone(simulation.of(comparison, pools, title)), encoding="utf-8")
    return page


def _as_json(comparison: Comparison) -> dict[str, Any]:
    return {"policies": {name: outcome.as_json() for name, outcome in comparison.policies.items()}}


def _print(comparison: Comparison) -> None:
    table = Table("policy", *(title for title, _ in compare.COLUMNS))
    for name, outcome in comparison.policies.items():
        table.add_row(name, *(show(outcome.intervals) for _, show in compare.COLUMNS))
    # Wide where there is no terminal: a table in a log must not be cut.
    console = screen()
    console.print(table) if console.is_terminal else screen(width=150).print(table)
