"""``vf explain``: what would run where, before anything runs."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from virtualflow.cli.cell_table import cell_report, cells_of, print_cells
from virtualflow.cli.memory import memory_by_type
from virtualflow.cli.options import Profiles, device_names, numbers, pools_of, staged_workload_of
from virtualflow.cli.screen import screen
from virtualflow.core.cells import Cells
from virtualflow.core.devices import is_number, names_of, type_of
from virtualflow.core.mapping import Mapping, assign, spread
from virtualflow.core.sharding import Epoch, node_sizes, shuffled
from virtualflow.core.wording import counted
from virtualflow.errors import ConfigError
from virtualflow.solver.grid_costs import GridCosts, costs_at


def explain(
    devices: Annotated[
        str, typer.Option(help="The number of devices; with stages also types: V100:2,P100:4.", metavar="N")
    ],
    batch_size: Annotated[int, typer.Option(help="Examples in a global batch.", metavar="N")],
    virtual_nodes: Annotated[
        str,
        typer.Option(
            help="The number of virtual nodes, or their sizes: 8, or 6,6,4, or 192x16,256x8.", metavar="N|SIZES"
        ),
    ],
    mapping: Annotated[
        str | None,
        typer.Option(
            help="A device's index for each virtual node, such as 0,1,1,0; with stages a row for each: 0,0/1,1.",
            metavar="LIST",
        ),
    ] = None,
    stages: Annotated[
        int | None, typer.Option(help="The number of stages that the model is cut into.", metavar="N", min=1)
    ] = None,
    copies: Annotated[int, typer.Option(help="With stages: on how many devices each is kept.", min=1, metavar="N")] = 2,
    pipeline: Annotated[str, typer.Option(help="With stages: the schedule.", metavar="1f1b|gpipe")] = "1f1b",
    workload: Annotated[
        str | None, typer.Option(help="With stages: the script, if it was profiled.", metavar="SCRIPT")
    ] = None,
    profiles: Profiles = None,
    memory: Annotated[
        str | None,
        typer.Option(
            help="With a stage profile: a device's memory, where it is not as profiled: 16G, or V100=16G,P100=12G.",
            metavar="LIST",
        ),
    ] = None,
    examples: Annotated[
        int | None, typer.Option(help="Length of the dataset: shows the steps of an epoch too.", metavar="N")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the mapping, the waves and the shard sizes of a job, before anything runs."""
    sizes = node_sizes(batch_size, _sizes(virtual_nodes))
    if stages is not None:
        cells = cells_of(stages, len(sizes), names_of(pools_of(devices)), mapping, copies)
        _explain_cells(cells, pipeline, _costs(cells, sizes, workload, profiles, memory), as_json=as_json)
        return
    if memory is not None:
        raise ConfigError("--memory is for a model in stages: say how many with --stages")
    if mapping is not None and "/" in mapping:
        raise ConfigError(f"--mapping {mapping} has a row for each of several stages: say how many with --stages")
    names = device_names(devices)
    chosen = assign(numbers(mapping, "--mapping"), len(sizes), names) if mapping else spread(len(sizes), names)
    report = _report(chosen, names, sizes, examples)
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        _print(report)


def _explain_cells(cells: Cells, pipeline: str, costs: GridCosts | None, *, as_json: bool) -> None:
    report = cell_report(cells, pipeline, costs)
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        print_cells(report, screen())


def _costs(
    cells: Cells, sizes: tuple[int, ...], workload: str | None, profiles: Path | None, memory: str | None
) -> GridCosts | None:
    """What the script's profiles say, if they are asked for."""
    if workload is None and profiles is None:
        if memory is not None:
            raise ConfigError("--memory needs --workload or --profiles: without a profile, no bytes are known")
        return None
    if (known := staged_workload_of(workload, profiles)) is None:
        raise ConfigError(
            f"{workload or profiles} has no profile of a model in stages. Make one: `vf profile --device-type TYPE "
            "SCRIPT`, for a script whose Trainer has stages=[...]."
        )
    if len(set(sizes)) > 1:
        raise ConfigError("with a profile, all virtual nodes are of one size: give their number to --virtual-nodes")
    types = tuple(dict.fromkeys(type_of(device) for device in cells.devices))
    costs = costs_at(known, types, sizes[0]).with_memory(memory_by_type(memory, types, "--memory"))
    if costs.stages != cells.stages:
        raise ConfigError(f"--stages {cells.stages}: the profile of {known.name} is of {costs.stages} stages")
    return costs


def _sizes(text: str) -> int | list[int]:
    if is_number(text):
        return int(text)
    sizes: list[int] = []
    for part in text.split(","):
        size, _, times = part.partition("x")
        sizes += numbers(size, "--virtual-nodes") * (numbers(times, "--virtual-nodes")[0] if times else 1)
    return sizes


def _report(
    mapping: Mapping, names: tuple[str, ...], sizes: tuple[int, ...], examples: int | None
) -> dict[str, object]:
    rows = []
    for name in names:
        nodes = mapping.nodes_of(name)
        shards = [sizes[node] for node in nodes]
        rows.append({"device": name, "virtual_nodes": list(nodes), "shard_sizes": shards, "examples": sum(shards)})
    report: dict[str, object] = {
        "batch_size": sum(sizes),
        "virtual_nodes": len(sizes),
        "waves": mapping.waves,
        "devices": rows,
        "finer": _finer(sizes, len(names)),
    }
    if examples is not None:
        if examples < 1:
            raise ConfigError(f"--examples {examples}: a dataset has at least one")
        epoch = Epoch(0, shuffled(0, 0, examples), sizes)
        last = epoch.batch(epoch.steps - 1)
        report["steps_per_epoch"] = epoch.steps
        report["last_batch"] = [len(shard) for shard in last.shards]
    return report


def _finer(sizes: tuple[int, ...], devices: int) -> list[dict[str, float]]:
    """Larger numbers of virtual nodes that leave less to the device with the most examples, on devices that are alike.

    *longer* is how much longer than on a perfectly even split that device computes.
    """
    batch_size = sum(sizes)
    useful: list[dict[str, float]] = []
    for nodes in (len(sizes), *(cut * len(sizes) for cut in range(2, 9))):
        if nodes > batch_size:
            break
        cut = node_sizes(batch_size, nodes) if nodes > len(sizes) else sizes
        shares = spread(nodes, tuple(map(str, range(devices))))
        most = max(sum(cut[node] for node in shares.nodes_of(device)) for device in set(shares.devices))
        if not useful or most < useful[-1]["most_examples"]:
            useful.append({"virtual_nodes": nodes, "most_examples": most, "longer": most * devices / batch_size - 1})
    return useful


def _print(report: dict[str, object]) -> None:
    console = screen()
    rows = report["devices"]
    assert isinstance(rows, list)
    assert isinstance(report["waves"], int)
    console.print(
        f"{report['batch_size']} examples a step in {report['virtual_nodes']} virtual nodes on "
        f"{counted(len(rows), 'device')}: {counted(report['waves'], 'wave')}",
        style="bold",
    )
    table = Table("device", "virtual nodes, in the order they run", "shard sizes", "examples")
    for row in rows:
        nodes, sizes = (", ".join(map(str, row[key])) for key in ("virtual_nodes", "shard_sizes"))
        table.add_row(row["device"], nodes, sizes, str(row["examples"]))
    console.print(table)
    if "steps_per_epoch" in report:
        last = report["last_batch"]
        assert isinstance(last, list)
        console.print(f"{report['steps_per_epoch']} steps an epoch; the last one has {sum(last)} examples: {last}")
    finer = report["finer"]
    assert isinstance(finer, list)
    for now, better in itertools.pairwise(finer):
        console.print(
            f"Finer: with {better['virtual_nodes']} virtual nodes the device with the most examples has "
            f"{better['most_examples']} instead of {now['most_examples']}, {better['longer']:.0%} more than an even "
            "split. Small ones take longer for each example: `vf profile` measures that, and `vf solve` counts it."
        )
    console.print("Any other number of devices, up to the number of virtual nodes, gives the same bits.")
