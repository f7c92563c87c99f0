"""``vf solve``: the best plan for a mix of device types, before anything runs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from virtualflow.cli.files import check_file, writing
from virtualflow.cli.options import Profiles, staged_workload_of, workload_of
from virtualflow.cli.screen import screen
from virtualflow.cli.solve_stages import solve_stages
from virtualflow.core.cell_schedule import check_schedule
from virtualflow.core.devices import Pool, parse_pools
from virtualflow.core.profile import MEMORY, Profile, Workload
from virtualflow.errors import ConfigError, SolverError
from virtualflow.solver import plan as plans
from virtualflow.solver.alternatives import alternatives, even, subsets
from virtualflow.solver.finer import finer_plans
from virtualflow.solver.node_shares import Plan, Share
from virtualflow.solver.search import on_one_machine, predict, solve_fixed, solve_free
from virtualflow.system.text import visible


def solve(
    batch_size: Annotated[int, typer.Option(help="Examples in a global batch.", min=1, metavar="N")],
    devices: Annotated[
        str,
        typer.Option(
            help="The devices: V100:2 on one machine, P100:4+4 on two machines with four each.", metavar="LIST"
        ),
    ],
    workload: Annotated[
        str | None,
        typer.Option(
            help="resnet50, resnet56, bert-base or transformer; or a script that was profiled.", metavar="NAME"
        ),
    ] = None,
    profiles: Profiles = None,
    virtual_nodes: Annotated[
        int | None,
        typer.Option(
            help="The virtual nodes of an existing job. Without this, the solver chooses node sizes.",
            min=1,
            metavar="N",
        ),
    ] = None,
    evaluate: Annotated[
        str | None,
        typer.Option(
            help="Predict a plan given by hand: virtual nodes on each device x node size, as V100=8x256,P100=2x256.",
            metavar="PLAN",
        ),
    ] = None,
    copies: Annotated[
        int,
        typer.Option(
            help="Of a model in stages: on how many devices each is kept, as in its script.", min=1, metavar="N"
        ),
    ] = 2,
    pipeline: Annotated[
        str, typer.Option(help="Of a model in stages: the schedule, as in its script.", metavar="1f1b|gpipe")
    ] = "1f1b",
    memory: Annotated[
        str | None,
        typer.Option(
            help="Of a model in stages: a device's memory, where it is not as profiled: 16G, or V100=16G,P100=12G.",
            metavar="LIST",
        ),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show alternatives, and why they are slower.")] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the plan, for `vf run --plan`.", metavar="FILE")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find the fastest split of a batch over devices, and predict the time of a step.

    For a script whose model is cut into stages, and that was profiled: the fastest grid of stages and virtual nodes.
    """
    if output is not None:
        check_file(output)
    check_schedule(pipeline)
    if (staged := staged_workload_of(workload, profiles)) is not None:
        if evaluate is not None:
            raise ConfigError("--evaluate is for whole models; `vf explain --stages N --mapping ...` predicts a grid")
        given = (staged, parse_pools(devices), batch_size, virtual_nodes, pipeline, copies, memory, output)
        solve_stages(*given, as_json=as_json, console=screen(highlight=False))
        return
    if memory is not None:
        raise ConfigError("--memory is for a model in stages: profile a script whose Trainer has stages=[...]")
    known, pools = workload_of(workload, profiles), parse_pools(devices)
    if not known.communication.by_machines:  # never measured between machines: all count as on one
        known, pools = on_one_machine(known, pools)
    if evaluate is not None:
        best, others = _by_hand(known, pools, evaluate, batch_size), []
    else:
        best = _best(known, pools, batch_size, virtual_nodes)
        others = alternatives(best, _others(known, pools, batch_size, virtual_nodes, best))
    finer = list(finer_plans(known, pools, best)) if virtual_nodes is not None and evaluate is None else []
    report = plans.to_json(best, known.name, others)
    report["finer"] = [
        {"virtual_nodes": plan.virtual_nodes, "node_size": plan.shares[0].node_size, "step_seconds": plan.step_seconds}
        for plan in finer
    ]
    if output is not None:
        with writing(output):
            output.write_text(json.dumps(report, indent=2) + "\n")
    if as_json:
        print(json.dumps(report, indent=2))
        return
    console = screen(highlight=False)
    _show(console, "plan", best, known)
    alone = [plan for plan, _ in others if len(plan.types) == 1]
    if alone and len(best.types) > 1:
        faster = alone[0].step_seconds / best.step_seconds - 1
        console.print(
            f"{faster:.1%} faster than {alone[0].types[0]} alone ({alone[0].examples_per_second:.4g} examples/s)"
        )
    elif len(pools) > 1 and len(best.types) == 1 and evaluate is None:
        console.print(f"no mix of types is faster than {best.types[0]} alone")
    for plan in finer:
        console.print(
            f"finer: {plan.virtual_nodes} virtual nodes of {plan.shares[0].node_size} examples would take "
            f"{plan.step_seconds:.4g} s a step, {1 - plan.step_seconds / best.step_seconds:.1%} less; that is another "
            "job, with other bits",
            soft_wrap=True,
        )
    for share in best.shares:
        profile = known.profile(share.device_type)
        if not profile.is_measured(share.node_size):
            _print_guess(console, share, profile)
    if explain:
        for plan, why in others:
            _show(console, f"loses: {why}", plan, known)


def _best(workload: Workload, pools: Sequence[Pool], batch_size: int, virtual_nodes: int | None) -> Plan:
    if virtual_nodes is None:
        return solve_free(workload, pools, batch_size)
    if batch_size % virtual_nodes:
        raise ConfigError(
            f"{virtual_nodes} virtual nodes do not divide a batch of {batch_size} evenly; the solver wants one node "
            "size. Leave --virtual-nodes out to let it choose the sizes."
        )
    return solve_fixed(workload, pools, batch_size // virtual_nodes, virtual_nodes)


def _others(
    workload: Workload, pools: Sequence[Pool], batch_size: int, virtual_nodes: int | None, best: Plan
) -> list[Plan]:
    plans = []
    for some in subsets(pools):
        try:
            plans.append(_best(workload, some, batch_size, virtual_nodes))
        except SolverError:
            continue  # these alone can't
    if len(pools) > 1 and len({share.node_size for share in best.shares}) == 1:
        fits = [p for p in pools if workload.profile(p.device_type).may_hold(best.shares[0].node_size)]
        if best.virtual_nodes >= sum(pool.count for pool in fits):
            plans.append(predict(workload, fits, even(best, fits)))
    return plans


def _by_hand(workload: Workload, pools: Sequence[Pool], text: str, batch_size: int) -> Plan:
    counts = {pool.device_type: pool.count for pool in pools}
    shares = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([^=\s]+)=([0-9]+)x([0-9]+)\s*", part)
        if match is None or match[1] not in counts:
            raise ConfigError(
                f"--evaluate {part.strip()!r}: expected TYPE=VIRTUAL_NODESxNODE_SIZE for types among --devices "
                f"({', '.join(counts)}), such as V100=8x256"
            )
        shares.append(Share(match[1], counts[match[1]], int(match[2]), int(match[3])))
    plan = predict(workload, pools, shares)
    if plan.batch_size != batch_size:
        raise ConfigError(f"the plan processes {plan.batch_size} examples a step, not --batch-size {batch_size}")
    return plan


def _print_guess(console: Console, share: Share, profile: Profile) -> None:
    beyond = share.node_size > profile.largest
    unknown = f", only up to {profile.largest}; whether it fits into memory is not known" if beyond else ""
    text = f"{share.device_type}: node size {share.node_size} was not measured, its time is extrapolated{unknown}"
    console.print(text, style="yellow", soft_wrap=True)


def _show(console: Console, title: str, plan: Plan, workload: Workload) -> None:
    columns = ("type", "devices", "virtual nodes each", "node size", "examples", "largest node size")
    table = Table(*columns, title=Text(visible(title), style="italic"), title_justify="left")
    for share in plan.shares:
        profile = workload.profile(share.device_type)
        known = "fits" if profile.ended_by == MEMORY else "measured"
        cells = (share.device_type, share.count, share.virtual_nodes, share.node_size, share.examples)
        table.add_row(*(str(cell) for cell in (*cells, f"{profile.largest} ({known})")))
    console.print(table)
    console.print(
        f"{plan.step_seconds:.4g} s a step ({plan.compute_seconds:.4g} computing, {plan.communication_seconds:.4g} "
        f"communicating), {plan.examples_per_second:.5g} examples/s"
    )
