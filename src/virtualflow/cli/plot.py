"""``vf plot``: pictures of profiles and plans."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from virtualflow.cli.files import check_file, writing
from virtualflow.cli.options import Profiles, workload_of
from virtualflow.cli.screen import print_line
from virtualflow.cli.timeline import pyplot
from virtualflow.core.profile import Workload
from virtualflow.errors import ConfigError
from virtualflow.solver import plan as plans
from virtualflow.solver.node_shares import Share


def plot(
    what: Annotated[str, typer.Argument(help="profile or plan.", metavar="profile|plan")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The picture to write.", metavar="FILE")],
    workload: Annotated[
        str | None, typer.Option(help="A built-in workload or a profiled script.", metavar="NAME")
    ] = None,
    profiles: Profiles = None,
    plan: Annotated[Path | None, typer.Option(help="A plan that `vf solve -o` wrote.", metavar="FILE")] = None,
) -> None:
    """Draw a workload's profiles, or how a plan divides a step over its devices."""
    if what not in ("profile", "plan"):
        raise ConfigError(f"vf plot {what}: expected profile or plan")
    if what == "plan" and plan is None:
        raise ConfigError("vf plot plan needs --plan FILE, which `vf solve ... -o FILE` writes")
    check_file(output)
    known = workload_of(workload, profiles)
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    if plan is None:
        _draw_profiles(axes, known)
    else:
        _draw_plan(axes, known, plans.read(plan))
    with writing(output):
        figure.savefig(output, dpi=120)
    plt.close(figure)
    print_line(f"written: {output}")


def _draw_profiles(axes: Any, workload: Workload) -> None:
    for name, profile in sorted(workload.profiles.items()):
        sizes = [point.node_size for point in profile.points]
        axes.plot(sizes, [point.examples_per_second for point in profile.points], marker="o", markersize=3, label=name)
        low = [point.node_size / (point.high or point.seconds) for point in profile.points]
        high = [point.node_size / (point.low or point.seconds) for point in profile.points]
        axes.fill_between(sizes, low, high, alpha=0.2)
    axes.set(xscale="log", yscale="log", xlabel="node size", ylabel="examples/s", title=workload.name)
    axes.grid(alpha=0.3)
    axes.legend()


def _draw_plan(axes: Any, workload: Workload, shares: tuple[Share, ...]) -> None:
    """A bar for each device, a box for each virtual node: as long as it takes."""
    rows = [(share, number) for share in shares for number in range(share.count)]
    for row, (share, _) in enumerate(rows):
        seconds = workload.profile(share.device_type).seconds(share.node_size)
        color = f"C{sorted(workload.profiles).index(share.device_type)}"
        for node in range(share.virtual_nodes):
            axes.barh(row, seconds, left=node * seconds, color=color, edgecolor="white", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [f"{share.device_type} {number}" for share, number in rows])
    axes.invert_yaxis()
    axes.set(xlabel="seconds in a step: a box is a virtual node", title=workload.name)
