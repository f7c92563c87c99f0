"""Traces: jobs with their times of arrival, in our own format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from virtualflow.cluster.job import Job
from virtualflow.errors import ConfigError, TraceError

FORMAT, VERSION = "virtualflow trace", 1


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs by arrival, and where they come from."""

    jobs: tuple[Job, ...]
    source: str = ""
    generated: Mapping[str, Any] = field(default_factory=dict)  # what made it, if it was drawn at random

    def __post_init__(self) -> None:
        if not self.jobs:
            raise TraceError(f"{self.source or 'the trace'} has no jobs")
        ordered = tuple(sorted(self.jobs, key=lambda job: job.arrival_seconds))
        object.__setattr__(self, "jobs", ordered)
        seen: set[str] = set()
        for job in ordered:
            if job.id in seen:
                raise TraceError(f"{self.source or 'the trace'} has two jobs called {job.id}")
            seen.add(job.id)


def write(trace: Trace, path: Path) -> None:
    contents = {
        "format": FORMAT,
        "version": VERSION,
        "source": trace.source,
        "generated": dict(trace.generated),
        "jobs": [asdict(job) for job in trace.jobs],
    }
    path.write_text(json.dumps(contents, indent=1) + "\n")


def from_json(contents: Mapping[str, Any], where: str) -> Trace:
    """Our own format. *where* names the file."""
    if contents.get("version") != VERSION:
        raise TraceError(f"{where} has version {contents.get('version')}; this VirtualFlow reads {VERSION}")
    entries = contents.get("jobs")
    if not isinstance(entries, list):
        raise TraceError(f"{where} has no list of jobs")
    jobs = [_job(entry, f"{where}, job {number}") for number, entry in enumerate(entries)]
    return Trace(tuple(jobs), str(contents.get("source", where)), contents.get("generated") or {})


def _job(entry: Any, where: str) -> Job:
    known = {column.name for column in fields(Job)}
    if not isinstance(entry, dict) or set(entry) - known:
        odd = ", ".join(sorted(set(entry) - known)) if isinstance(entry, dict) else repr(entry)
        raise TraceError(f"{where}: unknown {odd}. A job has {', '.join(sorted(known))}.")
    try:
        return Job(**entry)
    except (TypeError, ConfigError) as error:
        raise TraceError(f"{where}: {error}") from None
