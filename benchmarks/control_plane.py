"""One coordinator, a thousand workers that speak its protocol and train nothing: joins, deaths, resizes, heartbeats.

The workers live in a few processes (``benchmarks.worker_swarm``), each with a line of its own to the coordinator, as a
worker's process has. What is counted was read from those lines, and the times are those of one clock on one machine.
"""

from __future__ import annotations

import random
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.worker_swarm import Counts, Swarm
from virtualflow.job.coordinator import Coordinator
from virtualflow.job.folder import JobFolder, JobSpec
from virtualflow.system.usage import resident_bytes

NODES_PER_WORKER = 4
TOGETHER = "a twelfth of them dies at once"
IDLE_SECONDS = 10.0  # for heartbeats
Row = dict[str, Any]


def run(*, quick: bool) -> None:
    section = report.Section("control-plane", quick=quick)
    sizes = (25, 50) if quick else (100, 300, 1000)
    found: dict[str, dict[str, Row]] = {}
    for workers in sizes:
        rows = found[str(workers)] = _job(workers)
        title = f"a job of {workers:,} workers; for each event: messages, traffic and processor time of the coordinator"
        columns = ["", "events", "read", "sent", "MB", "ms", "published, ms", "all formed, ms"]
        section.show(title, columns, [_shown(name, row) for name, row in rows.items()])
        section.save(found)


def _shown(name: str, row: Row) -> list[object]:
    times = [f"{row[key]:.0f}" if key in row else "" for key in ("published_ms", "formed_ms")]
    return [
        *(name, row["events"], f"{row['read']:,.0f}", f"{row['sent']:,.0f}", f"{row['megabytes']:.1f}"),
        *(f"{row['cpu_ms']:.0f}", *times),
    ]


def _job(workers: int) -> dict[str, Row]:
    with tempfile.TemporaryDirectory() as place, Swarm(NODES_PER_WORKER * workers) as swarm:
        course = _Course(Path(place), swarm, workers)
        outcome = course.coordinator.run()
        assert outcome.code == 0, outcome.failure
        return course.rows


class _Course:
    """What happens to the job, one thing after the other: a yield for each turn of the coordinator."""

    def __init__(self, place: Path, swarm: Swarm, workers: int) -> None:
        (script := place / "script.py").write_text("")
        devices = tuple(str(number) for number in range(workers))
        folder = JobFolder(place / "job")
        job = JobSpec.of("job", str(script), (), devices, replace_lost=False, patience_seconds=300.0)
        folder.create(job)
        self.rows: dict[str, Row] = {}
        self._swarm, self._workers, self._chance = swarm, workers, random.Random(0)
        self._begun = self._now()
        plan = self._plan()
        self.coordinator = Coordinator(job, folder, swarm, _Silent(), lambda: next(plan, None))

    def _plan(self) -> Iterator[None]:
        while self.coordinator.roster.mapping is None:
            yield
        self._note("start", 1)
        yield from self._idle()
        yield from self._die("a death", [1] * max(2, self._workers // 50))
        yield from self._die(TOGETHER, [self._workers // 12])
        yield from self._resize("half of them leave", self._workers // 2)
        yield from self._resize("as many join", self._workers)
        self._note("all", 1)
        self.rows["all"]["peak_megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        self._swarm.finish()

    def _idle(self) -> Iterator[None]:
        until = time.monotonic() + IDLE_SECONDS
        self._begin()
        while time.monotonic() < until:
            yield
        self._note("a second without events", IDLE_SECONDS)

    def _die(self, name: str, strikes: Sequence[int]) -> Iterator[None]:
        """So many random workers die at once in each of *strikes*, each after the last one was recovered from."""
        published, formed = [], []
        self._begin()
        for count in strikes:
            devices = self._chance.sample(self.coordinator.roster.generation.devices, count)
            left, begun = len(self.coordinator.roster.generation.devices) - count, time.monotonic()
            for device in devices:
                self._swarm.strike(device)
            while self.coordinator.roster.pending is None:
                yield
            published.append((time.monotonic() - begun) * 1e3)
            while len(self.coordinator.roster.generation.devices) > left or not self.coordinator.roster.is_settled:
                yield
            formed.append((time.monotonic() - begun) * 1e3)
        self._note(name, len(strikes))
        times = {"published_ms": statistics.median(published), "formed_ms": statistics.median(formed)}
        self.rows[name] |= times | {"published_max_ms": max(published), "formed_max_ms": max(formed)}

    def _resize(self, name: str, devices: int) -> Iterator[None]:
        self._begin()
        begun = time.monotonic()
        self.coordinator.resize(devices)
        while not self.coordinator.roster.is_settled:
            yield
        formed = (time.monotonic() - begun) * 1e3
        self._note(name, 1)
        self.rows[name]["formed_ms"] = formed

    def _now(self) -> tuple[float, Counts]:
        return time.process_time(), self._swarm.counts()

    def _begin(self) -> None:
        self._since = self._now()

    def _note(self, name: str, events: float) -> None:
        (cpu, before), (cpu_now, counts) = (self._begun if name in ("start", "all") else self._since), self._now()
        self.rows[name] = {
            "events": round(events),
            "cpu_ms": (cpu_now - cpu) * 1e3 / events,
            "read": (counts.sent - before.sent) / events,
            "sent": (counts.received - before.received) / events,
            "megabytes": (counts.bytes_sent + counts.bytes_received - before.bytes_sent - before.bytes_received)
            / events
            / 1e6,
            "resident_megabytes": resident_bytes() / 1e6,
        }


class _Silent:
    def write(self, device: str, stream: str, data: bytes, *, lead: bool) -> None: ...
    def close(self) -> None: ...
