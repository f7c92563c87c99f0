"""Allocations as a picture, for documents. What a user sees of a simulation is the page of `vf simulate -o`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from virtualflow.core.devices import Pool, names_of, type_of
from virtualflow.sim.result import JobResult, Run

MAX_BOXES = 20_000  # beyond, a chart shows nothing but ink
LABELLED = 0.012  # of the width: narrower boxes have no room for a name
_Box = tuple[float, float, int, int, bool]


def boxes(job: JobResult, rows: Mapping[str, int]) -> Iterator[_Box]:
    """A job's boxes: start, end, first row, number of rows, and whether the allocation mixes device types."""
    for segment in job.segments:
        mixed = len({type_of(device) for device in segment.devices}) > 1
        places = sorted(rows[device] for device in segment.devices)
        first = places[0]
        for place, following in zip(places, [*places[1:], -1], strict=True):
            if following != place + 1:
                yield segment.start_seconds, segment.end_seconds, first, place - first + 1, mixed
                first = following


def allocation(run: Run, pools: Sequence[Pool], path: Path) -> bool:
    """Draw who had which devices when: a coloured box per job, hatched where it mixes types. False if too much."""
    return allocations([run], pools, path)


def allocations(runs: Sequence[Run], pools: Sequence[Pool], path: Path) -> bool:
    """The same for several runs of the same jobs, one below the other, on one scale."""
    rows = {device: row for row, device in enumerate(names_of(pools))}
    drawn = [[(job, box) for job in run.jobs for box in boxes(job, rows)] for run in runs]
    if sum(map(len, drawn)) > MAX_BOXES:
        return False
    figure = Figure(figsize=(11, len(runs) * min(9.0, 1.6 + 0.22 * len(rows))))
    width = max(run.accounts.end_seconds - run.accounts.start_seconds for run in runs)
    for run, found, axis in zip(runs, drawn, figure.subplots(len(runs), squeeze=False)[:, 0], strict=True):
        _draw(axis, run, found, pools, width)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    return True


def _draw(axis: Any, run: Run, drawn: Sequence[tuple[JobResult, _Box]], pools: Sequence[Pool], width: float) -> None:
    colours, names = colormaps["tab20"], sorted({job.job.id for job in run.jobs}, key=lambda name: (len(name), name))
    numbers = {name: number for number, name in enumerate(names)}
    zero = run.accounts.start_seconds
    for job, (start, stop, first, height, mixed) in drawn:
        colour = colours(numbers[job.job.id] % 20)
        axis.add_patch(Rectangle((start - zero, first), stop - start, height, facecolor=colour, edgecolor="white",
                                 linewidth=0.6, hatch="///" if mixed else None))  # fmt: skip
        if stop - start > LABELLED * width:
            axis.text((start + stop) / 2 - zero, first + height / 2, job.job.id, ha="center", va="center", fontsize=7)
    devices = sum(pool.count for pool in pools)
    axis.set(xlim=(0, width), ylim=(0, devices), xlabel="seconds", ylabel="devices", title=run.policy)
    bottom = 0
    for pool in pools:
        bottom += pool.count
        axis.axhline(bottom, color="black", linewidth=0.8)
        axis.text(1.005 * width, bottom - pool.count / 2, pool.device_type, va="center", fontsize=8)
