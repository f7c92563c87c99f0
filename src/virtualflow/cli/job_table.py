"""Jobs as tables and words: what ``vf status``, ``vf queue`` and ``vf describe`` print. 80 columns are enough."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import msgspec
from rich import box
from rich.console import Console, Group
from rich.table import Column, Table

from virtualflow.cli.screen import screen
from virtualflow.cli.sweeps import folded
from virtualflow.core.job_description import JobDescription
from virtualflow.core.job_state import JobState
from virtualflow.core.job_view import JobView
from virtualflow.core.sizes import size_text

WIDE = 200  # columns for --wide where the terminal has fewer: a line may wrap, a word is never cut
MAX_REASONS = 10  # below a table that has no column for them
TIMES = ("submitted", "started", "ended", "by", "ends")
# of a job's facts: shown in another way, or not at all
ELSEWHERE = (
    *("events", "failure", "workers", "mapping", "memory", "cells", "shadows", "speed", "use"),
    *("description", "terms", "emulated", "hash_seed"),
)
DESCRIBED_BY_DEFAULT = msgspec.to_builtins(JobDescription(""))


def views_of(jobs: Sequence[dict[str, Any]]) -> list[JobView]:
    """What the manager's API has answered, as values."""
    return msgspec.convert(jobs, list[JobView])


def console(*, wide: bool) -> Console:
    here = screen(highlight=False)
    return screen(highlight=False, width=max(here.width, WIDE)) if wide else here


def job_table(jobs: Sequence[JobView], *, wide: bool = False, fold: bool = False) -> Group:
    """The first columns are what most people want; with *wide*, all there is to know follows.

    With *fold*, the jobs of a sweep are one row.
    """
    if not jobs:
        return Group("no jobs yet: `vf run` starts one here, `vf submit` gives one to a manager")
    rows = folded(jobs) if fold else jobs
    alone = [row for row in rows if isinstance(row, JobView)]
    reasons = [] if wide else [f"{job.name} ({job.id}): {job.reason}" for job in alone if job.reason]
    reasons += [f"{job.name} ({job.id}): sentinel: {text}" for job in alone for text in job.corruption]
    deadlines = [
        f"{job.name} ({job.id}): its deadline, {moment(job.by)}, {job.deadline}"
        for job in jobs
        if job.by is not None and not job.state.is_ended
    ]
    return Group(_table(rows, wide=wide), *reasons[-MAX_REASONS:], *deadlines[-MAX_REASONS:])


def _table(rows: Sequence[JobView | list[JobView]], *, wide: bool) -> Table:
    first = [Column("NAME", overflow="fold"), Column("SCRIPT", overflow="fold")]
    first += [Column(name, no_wrap=True) for name in ("STATE", "DEVICES", "PROGRESS", "ETA", "ID")]
    more = ("OWNER", "PRIO", "VN/DEV", "STEP", "LOSS", "METRICS", "EX/S", "QUEUED", "RUN", "RESIZES", "FAILURES")
    rest = [*(Column(name, no_wrap=True) for name in more), Column("REASON", overflow="fold")] if wide else []
    table = Table(*first, *rest, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for row in rows:
        if isinstance(row, JobView):
            table.add_row(*_first(row), *(_rest(row) if wide else ()))
        else:
            table.add_row(*_of_sweep(row))
    return table


def _of_sweep(jobs: Sequence[JobView]) -> tuple[str, ...]:
    """A sweep in the columns of a job: how many of its jobs are in which state, and how far all of them are."""
    states = Counter(job.state for job in jobs)
    parts = [1.0 if job.state == JobState.DONE else job.part_done or 0.0 for job in jobs]
    devices = f"{sum(len(job.devices) for job in jobs)}/{sum(job.want for job in jobs if not job.state.is_ended)}"
    state = "\n".join(f"{count} {state}" for state, count in states.items())
    return (
        jobs[0].sweep,
        PurePath(jobs[0].script).name,
        state,
        devices,
        f"{100 * sum(parts) / len(parts):.0f}%",
        "",
        "sweep",
    )


def _first(job: JobView) -> tuple[str, ...]:
    part = job.part_done
    progress = f"{100 * part:.0f}%" if part is not None else f"step {job.step:.0f}" if job.step else ""
    eta = duration(job.eta_seconds) if job.eta_seconds is not None else ""
    devices = f"{len(job.devices)}/{job.want}"
    return job.name, PurePath(job.script).name, job.state, devices, progress, eta, job.id


def _rest(job: JobView) -> tuple[str, ...]:
    return (
        job.owner,
        f"{job.priority:g}",
        " ".join(f"{device}:{len(nodes)}" for device, nodes in job.mapping.items()),
        f"{job.step:.0f}/{job.steps:.0f}" if job.steps else f"{job.step:.0f}",
        f"{job.loss:.4f}" if job.loss is not None else "",
        _metrics(job.metrics),
        f"{job.examples_per_second:.0f}" if job.examples_per_second is not None else "",
        duration(job.queued_seconds),
        duration(job.run_seconds),
        str(job.resizes),
        str(job.failures),
        job.reason,
    )


def fact_table(facts: dict[str, Any]) -> Table:
    """A job's facts, one a line; times as times."""
    table = Table(Column(no_wrap=True), Column(overflow="fold"), box=None, show_header=False, pad_edge=False)
    for key, value in (facts | _of_the_job(facts)).items():
        if key not in ELSEWHERE and value not in (None, "", [], {}):
            table.add_row(key.removesuffix("_seconds").replace("_", " "), _shown(key, value))
    if facts.get("memory"):
        table.add_row("memory", _needs(facts["memory"]))
    for device, nodes in facts["mapping"].items():
        used = _use(facts["use"][device]) if device in facts.get("use", ()) else []
        table.add_row(f"on {device}", " · ".join([f"virtual nodes {' '.join(map(str, nodes))}", *used]))
    return table


def _of_the_job(facts: dict[str, Any]) -> dict[str, Any]:
    """What its owner has decided of the job itself and of its terms, where that is more than *facts* say."""
    description, terms = facts.get("description", {}), facts.get("terms") or {}
    described = {key: value for key, value in description.items() if value != DESCRIBED_BY_DEFAULT[key]}
    return {key: value for key, value in (described | terms).items() if key not in facts}


def _needs(memory: dict[str, Any]) -> str:
    stages, node = memory["stages"], size_text(memory["node"])
    if len(stages) == 1:
        return f"{size_text(stages[0])}, and {node} for a virtual node"
    sizes = " ".join(map(size_text, stages))
    return f"stages of {sizes}, {memory['copies']} copies, and {node} for a virtual node through all of them"


def speed_table(speed: dict[str, Any]) -> Table:
    """What steps of a job took where it was, and would take elsewhere."""
    unseen = f"; of {' and '.join(speed['unseen'])} nothing is known" if speed["unseen"] else ""
    table = Table(
        *(Column("devices", overflow="fold"), Column("a step", justify="right"), Column("predicted", justify="right")),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title=f"speed{'' if speed['measured'] else ' (only ratios count)'}, from {speed['source']}{unseen}",
        title_justify="left",
    )
    for seen in speed["measured"]:
        waves = ",".join(f"{count}/{name}" for name, count in seen["waves"].items())
        where = f"{_types(seen['devices'])}, at most {waves} virtual nodes on one; {seen['steps']} steps"
        table.add_row(where, f"{seen['step_seconds']:.3g} s", f"{seen['predicted_step_seconds']:.3g} s")
    for other in speed["predicted"]:
        scale = f"{other['step_seconds']:.3g} ± {other['deviation_seconds']:.2g}"
        table.add_row(_types(other["devices"]), "", f"{scale} s" if speed["measured"] else scale)
    return table


def _types(counts: dict[str, int]) -> str:
    return ",".join(f"{name}:{count}" for name, count in counts.items())


def _use(used: dict[str, Any]) -> list[str]:
    """As "98% CPU", "412 MB", "GPU 3.0 GB": 100% is one core."""
    words = [f"{100 * used['cpu_cores']:.0f}% CPU", size_text(used["memory_bytes"])]
    return words if used.get("accelerator_bytes") is None else [*words, f"GPU {size_text(used['accelerator_bytes'])}"]


def _metrics(metrics: dict[str, float]) -> str:
    return " ".join(f"{name}={value:.4g}" for name, value in metrics.items())


def event_lines(events: Sequence[dict[str, Any]]) -> list[str]:
    lines = []
    for event in events:
        pause = f"; stood still for {event['total_pause_ms']:.0f} ms" if event["pause_ms"] is not None else ""
        lines.append(f"{moment(event['time'])}  step {event['step']}  {event['text']}{pause}")
    return lines


def duration(seconds: float) -> str:
    """``1:05``, ``2:00:00`` or ``3d 4:00:00``."""
    whole = int(seconds)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d}"
    days = f"{whole // 86400}d " if whole >= 86400 else ""
    return f"{days}{whole // 3600 % 24}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def moment(seconds: float) -> str:
    """A time since the epoch, as clocks here show it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _shown(key: str, value: Any) -> str:
    if key in TIMES:
        return moment(value)
    if key.endswith("_seconds"):
        return duration(value)
    if isinstance(value, list):
        return " ".join(map(str, value))
    if key == "metrics":
        return _metrics(value)
    if key == "parameters":
        return " ".join(f"{name}={each}" for name, each in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)
