"""What the screenshots show: a cluster with jobs in every state, and a simulation."""

from __future__ import annotations

import math
import time

from tests.dashboard.scripted import Json, Scripted, a_job, a_segment, some_devices
from virtualflow.cluster.throughput.workloads import paper_speeds
from virtualflow.core.devices import parse_pools
from virtualflow.dashboard import simulation
from virtualflow.sim import compare, costs
from virtualflow.sim.compare import Setting
from virtualflow.sim.generate import Recipe, generate


def a_report(jobs: int, devices: str, policies: list[str], seed: int = 0) -> Json:
    """The data of a simulation's report."""
    pools = parse_pools(devices)
    setting = Setting(pools, paper_speeds(), costs.named("measured"))
    trace = generate(Recipe(jobs, "12/h", seed=seed))
    return simulation.of(compare.compare(trace, policies, setting), pools, trace.source)


def curves(begin: float, end: float, changes: list[tuple[float, int]], speed: float, start: float = 2.3) -> Json:
    """A loss that falls, and a throughput that follows the devices; *changes* are (time, devices)."""
    times = [begin + (end - begin) * index / 299 for index in range(300)]
    devices = [[count for moment, count in changes if moment <= each][-1] for each in times]
    wave = [math.sin(7.3 * index) + math.sin(3.1 * index + 1) for index in range(300)]
    loss = [0.18 + start * math.exp(-index / 85) + 0.02 * wave[index] * math.exp(-index / 200) for index in range(300)]
    rates = [speed * count**0.94 * (1 + 0.012 * wave[index]) for index, count in enumerate(devices)]
    return {
        "time": times,
        "step": [12 * index for index in range(300)],
        "loss": loss,
        "examples_per_second": rates,
        "devices": devices,
    }


def _some_use(place: int) -> Json:
    return {
        "cpu_cores": 0.91 + 0.03 * (place % 3),
        "memory_bytes": (2240 + 64 * place) << 20,
        "accelerator_bytes": (9100 + 35 * place) << 20,
    }


def a_busy_day() -> Scripted:
    """A cluster as the screenshots show it: two device types, jobs in every state."""
    scripted = Scripted()
    scripted.state["devices"] = some_devices(V100=4, P100=4)
    now = time.time()
    v, p = [f"V100:{i}" for i in range(4)], [f"P100:{i}" for i in range(4)]
    all8, four = (*v, *p), tuple(v)

    def at(minutes: float) -> float:
        return now - 60 * minutes

    segments = [
        a_segment("digits", (v[0], v[1]), at(48), at(41)),
        a_segment("distil", (v[2], v[3]), at(46.4), at(41.2)),
        a_segment("bert-mrpc", all8, at(41), at(33)),
        a_segment("bert-mrpc", four, at(33), at(19)),
        a_segment("resnet56", tuple(p), at(33), at(25)),
        a_segment("resnet56", (p[0], p[1]), at(25), at(13)),
        a_segment("sweep-lr-0.1", (p[2], p[3]), at(25), at(16)),
        a_segment("sweep-lr-0.3", (p[2], p[3]), at(15), at(9.5)),
        a_segment("gpt-small", four, at(19), at(13)),
        a_segment("gpt-small", (*v, p[0], p[1]), at(13), at(4.2)),
        a_segment("gpt-small", (v[0], v[1], v[2], p[0]), at(4.2)),
        a_segment("resnet50", (p[2], p[3]), at(9.5), at(4.2)),
        a_segment("resnet50", (p[1], p[2], p[3]), at(4.2)),
        a_segment("eval-nightly", (v[3],), at(4.2)),
    ]
    done = {"step": 1000, "examples_per_second": None, "devices": ()}
    jobs = [
        a_job(
            "gpt-small",
            devices=(v[0], v[1], v[2], p[0]),
            nodes=16,
            id="j-7",
            priority=10,
            demand=8,
            step=3588,
            steps=9000,
            loss=0.2413,
            examples_per_second=1214.2,
            queued_seconds=41,
            run_seconds=1140,
            eta_seconds=1790,
            resizes=2,
            submitted=at(19.7),
            started=at(19),
        ),
        a_job(
            "resnet50",
            devices=(p[1], p[2], p[3]),
            nodes=8,
            id="j-8",
            priority=5,
            demand=4,
            step=812,
            steps=5004,
            loss=3.917,
            examples_per_second=387.6,
            queued_seconds=133,
            run_seconds=570,
            eta_seconds=2944,
            resizes=1,
            submitted=at(11.7),
            started=at(9.5),
        ),
        a_job(
            "eval-nightly",
            "STARTING",
            devices=(v[3],),
            nodes=4,
            id="j-9",
            demand=1,
            steps=200,
            queued_seconds=12,
            submitted=at(4.4),
            started=at(4.2),
        ),
        a_job(
            "sweep-lr-1.0",
            "QUEUED",
            id="j-10",
            demand=4,
            min=2,
            priority=2,
            queued_seconds=246,
            submitted=at(4.1),
            reason="waits: jobs of higher priority have the devices",
        ),
        a_job(
            "<b>ablation</b>",
            "QUEUED",
            id="j-11",
            demand=8,
            min=4,
            queued_seconds=61,
            submitted=at(1),
            reason="behind j-10",
        ),
        a_job(
            "distil",
            "PAUSED",
            id="j-6",
            demand=2,
            step=404,
            steps=2000,
            loss=1.208,
            queued_seconds=8,
            run_seconds=311,
            submitted=at(46.5),
        ),
        a_job(
            "sweep-lr-0.3",
            "DONE",
            id="j-5",
            **done,
            loss=0.3101,
            queued_seconds=60,
            run_seconds=330,
            submitted=at(16),
            ended=at(9.5),
        ),
        a_job(
            "resnet56",
            "DONE",
            id="j-2",
            **done,
            loss=0.2214,
            queued_seconds=0,
            run_seconds=1200,
            resizes=1,
            submitted=at(33),
            ended=at(13),
        ),
        a_job(
            "sweep-lr-0.1",
            "FAILED",
            id="j-3",
            devices=(),
            step=611,
            loss=None,
            queued_seconds=4,
            run_seconds=540,
            failures=1,
            submitted=at(25),
            ended=at(16),
            reason="ZeroDivisionError in train.py, line 31",
        ),
        a_job(
            "bert-mrpc",
            "DONE",
            id="j-1",
            **done,
            loss=0.1102,
            queued_seconds=0,
            run_seconds=1320,
            resizes=1,
            submitted=at(41),
            ended=at(19),
        ),
        a_job(
            "digits",
            "CANCELLED",
            id="j-0",
            devices=(),
            step=300,
            loss=0.5120,
            queued_seconds=0,
            run_seconds=420,
            submitted=at(48),
            ended=at(41),
        ),
    ]
    for job in jobs:
        job["use"] = {device: _some_use(place) for place, device in enumerate(job["devices"])}
    ids = {job["name"]: job["id"] for job in jobs}
    for segment in segments:
        segment["job"] = ids[segment["name"]]
    changes = [(at(19), 4), (at(13), 6), (at(4.2), 4)]
    scripted.series["j-7"] = curves(at(19), now, changes, 330)
    scripted.series["j-8"] = curves(at(9.5), now, [(at(9.5), 2), (at(4.2), 3)], 140, 6)

    def an_event(minutes: float, step: int, text: str, **pause: float) -> Json:
        return {
            "time": at(minutes),
            "step": step,
            "text": text,
            "pause_ms": pause or None,
            "total_pause_ms": sum(pause.values()) if pause else None,
        }

    scripted.details["j-7"] = {
        "script": "examples/gpt.py",
        "description": {"arguments": ["--width", "512", "--epochs", "30"]},
        "folder": "~/.virtualflow/jobs/j-7",
        "events": [
            an_event(19, 0, "started on 4 V100, 4 virtual nodes on each"),
            an_event(13, 1140, "grew from 4 to 6 devices: P100:0, P100:1 joined", stop=1.9, group=14.2, state=31.8),
            an_event(9.1, 1880, "saved a checkpoint"),
            an_event(6.3, 2402, "lost P100:1, replayed the step; it came back", notice=3.1, group=18.4, replay=212.0),
            an_event(4.2, 2802, "shrank from 6 to 4 devices: V100:3, P100:1 left", stop=2.2, group=12.7),
        ],
    }
    scripted.logs["j-7"] = "".join(
        f"epoch 3  step {step:>5,}  loss {2.3 * math.exp(-step / 1400):.4f}\n" for step in range(0, 3588, 60)
    )
    scripted.push(jobs, segments)
    return scripted
