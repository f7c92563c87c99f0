"""Large clusters: a decision with 100,000 jobs on 16,384 devices, a manager's tick, and a whole Philly trace."""

from __future__ import annotations

import fcntl
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks import published, report
from virtualflow.cluster.job import Job
from virtualflow.cluster.messages import Event, JobArrived, JobEnded, JobsRestored
from virtualflow.cluster.policies import registry
from virtualflow.cluster.scheduler import Scheduler
from virtualflow.cluster.throughput.model import Profiled
from virtualflow.core.devices import parse_pools
from virtualflow.core.job_description import JobDescription
from virtualflow.core.job_state import JobState
from virtualflow.core.job_terms import JobTerms
from virtualflow.events import STREAM, RunStarted, StepDone, StreamEvent
from virtualflow.events.event_types import encode
from virtualflow.job.folder import JobFolder
from virtualflow.job.status import JobStatus, WorkerStatus
from virtualflow.manager.description import Cluster
from virtualflow.manager.fleet import Fleet
from virtualflow.manager.manager import Manager
from virtualflow.manager.record import Record
from virtualflow.manager.records import Records
from virtualflow.manager.service import settle
from virtualflow.sim import costs, importers, metrics
from virtualflow.sim.compare import Setting, on_machines
from virtualflow.sim.compare import run as simulate
from virtualflow.testing import FakeLauncher

TYPES, DEVICES, JOBS = 8, 16_384, 100_000


def run(*, quick: bool) -> None:
    section = report.Section("scale", quick=quick)
    found = {"decisions": _decisions(section), "tick": _tick(section, 100 if quick else 1000)}
    section.save(found | {"philly": None if quick else _philly(section)})


def _decisions(section: report.Section) -> dict[str, Any]:
    """Processor time of one event. All devices are taken; the other jobs wait."""
    rows, found = [], {}
    for demand in (4, 2):
        brain, now = _crowded(demand), 2.0
        events: dict[str, list[Event]] = {
            "a job arrives and has to wait": [
                JobArrived(now, Job(f"low{n}", now, demand, 1.0, priority=3.0)) for n in range(10)
            ],
            "a job ends": [JobEnded(now, f"r{n}") for n in range(10)],
            "a job of the highest priority arrives": [
                JobArrived(now, Job(f"high{n}", now, demand, 1.0, priority=30.0)) for n in range(10)
            ],
        }
        running = DEVICES // demand
        for name, some in events.items():
            milliseconds = [_milliseconds(brain, event) for event in some]
            median, most = statistics.median(milliseconds), max(milliseconds)
            rows.append([f"{running:,} jobs run: {name}", f"{median:.1f}", f"{most:.1f}"])
            found[f"{running}: {name}"] = {"median_ms": median, "max_ms": most}
    title = (
        f"wfs, {JOBS:,} jobs, {DEVICES:,} devices of {TYPES} types: processor time of a decision, ms (goal: under 20)"
    )
    section.show(title, ["", "median of 10", "most"], rows)
    return found


def _crowded(demand: int) -> Scheduler:
    pools = on_machines(parse_pools(",".join(f"T{k}:{DEVICES // TYPES}" for k in range(TYPES))), 8)
    brain = Scheduler(pools, registry.make("wfs"), Profiled())
    names, running = brain.placement.devices, DEVICES // demand
    jobs = [
        (Job(f"r{n}", 0.0, demand, 1.0, priority=10.0), tuple(names[n * demand : (n + 1) * demand]))
        for n in range(running)
    ]
    waiting = tuple(Job(f"q{n}", 1.0, demand, 1.0, priority=1.0 + n % 5) for n in range(JOBS - running))
    brain.handle(JobsRestored(1.0, tuple(jobs), waiting))
    return brain


def _milliseconds(brain: Scheduler, event: Event) -> float:
    begun = time.process_time()
    brain.handle(event)
    return (time.process_time() - begun) * 1e3


def _philly(section: report.Section) -> dict[str, Any] | None:
    path = published.find("philly.csv")
    if path is None:
        return None
    trace = importers.read(path)
    begun = time.process_time()
    found = simulate(trace, "las", Setting(on_machines(parse_pools("V100:2500"), 8), Profiled(), costs.MEASURED))
    seconds, figures = time.process_time() - begun, metrics.of(found)
    row = [f"{seconds:.0f}", f"{found.events:,}", f"{figures.average_jct_seconds:,.0f}"]
    title = f"Philly, {len(trace.jobs):,} jobs on 2,500 devices under las (goal: under 300 s)"
    section.show(title, ["processor time, s", "events", "average JCT, s"], [row])
    return {"cpu_seconds": seconds, "events": found.events, "average_jct_seconds": figures.average_jct_seconds}


def _tick(section: report.Section, jobs: int) -> dict[str, Any]:
    """A manager whose jobs all run and make a step between two ticks. Nobody computes: their files are written here."""
    memory = Path("/dev/shm")  # the first look writes a line of each job's devices: a disk's time is not the manager's
    with (
        tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder,
        _home(Path(folder)),
        ExitStack() as held,
    ):
        records = Records(Path(folder) / "jobs.sqlite")
        held.callback(records.close)
        devices = [f"V100:{number}" for number in range(jobs)]
        records.save([_record(number, device) for number, device in enumerate(devices)])
        folders = [JobFolder(Path(folder) / "jobs" / record.id) for record in records.all()]
        for own, device in zip(folders, devices, strict=True):
            own.make()
            fcntl.flock(held.enter_context(own.lock.open("w")), fcntl.LOCK_EX)  # as its coordinator has
            worker = WorkerStatus(device, virtual_nodes=tuple(range(4)))
            own.write_state(JobStatus(JobState.RUNNING, 1, 4, (worker,), wanted=(device,)))
            _append(own, RunStarted({}, [device], [device] * 4, 4))
        cluster = Cluster(tuple(parse_pools(f"V100:{jobs}")), {})
        manager = Manager(cluster, registry.make("wfs"), records, fleet=Fleet(launcher=FakeLauncher()))
        settle()
        milliseconds = []
        for step in range(3 + 40):
            for own in folders:
                _append(own, StepDone(step, 0, 1.0, "", None, "", "", 32, 0.1, 1))
            begun = time.process_time()
            manager.tick()
            milliseconds.append((time.process_time() - begun) * 1e3)
        assert all(manager.fleet.watch(record.id).step == step + 1 for record in records.all())
    median, most = statistics.median(milliseconds[3:]), max(milliseconds[3:])
    title = f"a manager's tick with {jobs:,} running jobs, each a step further: processor time, ms (goal: under 100)"
    section.show(title, ["median of 40", "most"], [[f"{median:.0f}", f"{most:.0f}"]])
    return {"jobs": jobs, "median_ms": median, "max_ms": most}


@contextmanager
def _home(folder: Path) -> Iterator[None]:
    """Jobs are kept in *folder*, as long as this lasts."""
    before = os.environ.get("VF_HOME")
    os.environ["VF_HOME"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("VF_HOME")
        if before is not None:
            os.environ["VF_HOME"] = before


def _record(number: int, device: str) -> Record:
    description = JobDescription(f"/jobs/train{number % 10}.py")
    return Record(
        *(f"job-{number:04d}", description, "/", "python", JobTerms(virtual_nodes=4), float(number)),
        state=JobState.RUNNING,
        devices=(device,),
        started=1.0,
        launched=1.0,
    )


def _append(folder: JobFolder, event: StreamEvent) -> None:
    with (folder.path / STREAM).open("ab") as stream:
        stream.write(encode(event, time.time()) + b"\n")
