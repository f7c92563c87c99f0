"""``vf timeline``: a picture of which devices ran a job when, drawn from its event stream."""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from virtualflow.cli.files import check_file, writing
from virtualflow.cli.jobs import JobArgument
from virtualflow.cli.screen import print_line
from virtualflow.errors import EventStreamError, LaunchError
from virtualflow.events import STREAM, Regrouped, RunStarted, StepDone, read_timed_events
from virtualflow.job.folder import JobFolder
from virtualflow.manager.client import Client

WINDOW = 20  # steps over which the throughput is averaged
NEAR = 0.02  # of the picture's length: two labels at that distance would overlap

Timed = tuple[float, Any]  # when an event was written, and the event


@dataclass(frozen=True, slots=True)
class Period:
    """A stretch of time with one mapping."""

    start: float
    end: float
    nodes: dict[str, int]  # how many virtual nodes each device ran; of a model in stages, how many cells


def timeline(
    job: JobArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="The picture to write.", metavar="FILE")] = Path(
        "timeline.png"
    ),
) -> None:
    """Draw which devices ran a job when, how many virtual nodes each, and the throughput."""
    check_file(output)
    try:
        with _stream_of(job) as path:
            events = list(read_timed_events(path))
    except EventStreamError:
        raise LaunchError(f"job {job} has no events yet; try again when it trains") from None
    runs = _runs(events)
    periods = [period for run in runs for period in _periods(run)]
    in_stages = any(isinstance(event, RunStarted) and event.cells for _, event in events)
    what = "cells" if in_stages else "virtual nodes"
    _draw(periods, [_throughput(run) for run in runs], _changes(events), job, output, what)
    print_line(f"wrote {output}")


@contextmanager
def _stream_of(job: str) -> Iterator[Path]:
    """The job's event stream; with ``$VF_CLUSTER``, a copy of it."""
    if (manager := Client.remote()) is None:
        yield JobFolder.of(job).path / STREAM
        return
    with tempfile.TemporaryDirectory() as folder, Path(folder, STREAM).open("w", encoding="utf-8") as copy:
        job_id, answer = manager.job_id(job), {"text": "", "offset": 0}
        while (answer := manager.get(f"/api/jobs/{job_id}/events?offset={answer['offset']}"))["text"]:
            copy.write(answer["text"])
        copy.flush()
        yield Path(folder, STREAM)


def _runs(events: list[Timed]) -> list[list[Timed]]:
    """The events of each run of the job: it may have been stopped and resumed, and between two runs it did nothing."""
    runs: list[list[Timed]] = []
    for time, event in events:
        if isinstance(event, RunStarted):
            runs.append([])
        if runs:
            runs[-1].append((time, event))
    if not runs:
        raise LaunchError("the job has not made a Trainer yet; try again when it trains")
    return runs


def _periods(run: list[Timed]) -> list[Period]:
    marks = [(time, _runs_on(event)) for time, event in run if isinstance(event, RunStarted | Regrouped)]
    ends = [time for time, _ in marks[1:]] + [run[-1][0]]
    return [Period(time, end, nodes) for (time, nodes), end in zip(marks, ends, strict=True)]


def _runs_on(event: RunStarted | Regrouped) -> dict[str, int]:
    """How many virtual nodes each device runs, or cells. One that only holds stages runs none."""
    cells = itertools.chain(event.mapping, *event.cells)
    return {**dict.fromkeys(event.devices, 0), **Counter(cells)}


def _stops(periods: list[Period]) -> list[tuple[float, float]]:
    """When the job had no device: from the end of one run to the begin of the next."""
    return [(one.end, other.start) for one, other in itertools.pairwise(periods) if other.start > one.end]


def _throughput(run: list[Timed]) -> list[tuple[float, float]]:
    """Examples a second, over a window of steps that ends at a time; a run that is shorter is a window itself."""
    steps = [(time, event.examples) for time, event in run if isinstance(event, StepDone)]
    window = min(WINDOW, len(steps) - 1)
    points = []
    for first, last in zip(range(len(steps)), range(window, len(steps)), strict=False):
        seconds = steps[last][0] - steps[first][0]
        if seconds > 0:
            points.append((steps[last][0], sum(examples for _, examples in steps[first + 1 : last + 1]) / seconds))
    return points


def _changes(events: list[Timed]) -> list[tuple[float, Regrouped]]:
    return [(time, event) for time, event in events if isinstance(event, Regrouped)]


def _colour(change: Regrouped) -> str:
    return "tab:red" if change.cause == "loss" else "tab:gray"


def change_labels(changes: list[tuple[float, Regrouped]], near_seconds: float) -> list[tuple[float, str, str]]:
    """When, in which colour, and the text. Changes that are *near* each other share a label, so that it can be read."""
    labels: list[tuple[float, str, str]] = []
    for time, change in changes:
        text = f"{change.cause} {sum(change.pause_ms.values()):.0f} ms"
        if labels and time - labels[-1][0] < near_seconds:
            first, colour, earlier = labels.pop()
            labels.append((first, colour, f"{earlier}, {text}"))
        else:
            labels.append((time, _colour(change), text))
    return labels


def _draw(
    periods: list[Period],
    throughputs: list[list[tuple[float, float]]],
    changes: list[tuple[float, Regrouped]],
    job: str,
    output: Path,
    what: str,
) -> None:
    plt = pyplot()
    zero, length = periods[0].start, periods[-1].end - periods[0].start
    devices = sorted({device for period in periods for device in period.nodes}, key=lambda d: (len(d), d))
    most = max(count for period in periods for count in period.nodes.values())
    figure, (top, bottom) = plt.subplots(2, 1, sharex=True, figsize=(10, 1.5 + 0.45 * len(devices) + 2), height_ratios=(
        0.45 * len(devices) + 0.5, 2))  # fmt: skip
    for period in periods:
        for device, count in period.nodes.items():
            shade = plt.get_cmap("viridis")(0.25 + 0.6 * count / most)
            width = period.end - period.start
            top.barh(devices.index(device), width, left=period.start - zero, height=0.8, color=shade, edgecolor="white")
            if width >= NEAR * length:  # else the number would not fit into its bar
                top.text(period.start - zero + width / 2, devices.index(device), str(count), ha="center", va="center",
                         color="white", fontsize=8)  # fmt: skip
    for begin, end in _stops(periods):
        for axis in (top, bottom):
            axis.axvspan(begin - zero, end - zero, color="0.92", zorder=0)
        top.text((begin + end) / 2 - zero, (len(devices) - 1) / 2, "paused", ha="center", va="center", color="0.4",
                 fontsize=8, rotation=90)  # fmt: skip
    for time, change in changes:
        for axis in (top, bottom):
            axis.axvline(time - zero, color=_colour(change), linestyle=":", linewidth=1)
    for time, colour, text in change_labels(changes, NEAR * length):
        top.annotate(text, (time - zero, len(devices) - 0.4), fontsize=7, color=colour, rotation=30,
                     annotation_clip=False)  # fmt: skip
    top.set_yticks(range(len(devices)), [f"device {device}" for device in devices])
    top.set_title(f"job {job}: {what} on each device", loc="left", pad=38 if changes else 8)
    for throughput in throughputs:
        bottom.plot([time - zero for time, _ in throughput], [speed for _, speed in throughput], color="tab:blue")
    bottom.set_ylabel("examples/s")
    bottom.set_xlabel("seconds")
    bottom.set_ylim(bottom=0)
    figure.tight_layout()
    with writing(output):
        figure.savefig(output, dpi=120)
    plt.close(figure)


def pyplot() -> Any:
    """matplotlib's, drawing into files."""
    try:
        import matplotlib
    except ImportError:
        raise LaunchError("a picture needs matplotlib: pip install 'virtualflow[plot]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    return plt
