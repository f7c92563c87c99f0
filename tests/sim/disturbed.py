"""Runs in which devices go and come back and owners change their minds, with every event looked at."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from virtualflow.cluster.job import LINEAR, Job
from virtualflow.cluster.messages import DevicesJoined, DevicesLost, Event, JobChanged
from virtualflow.cluster.policies.base import Policy
from virtualflow.cluster.scheduler import Scheduler
from virtualflow.cluster.throughput.table import Table
from virtualflow.core.devices import Pool, names_of, parse_pools
from virtualflow.sim.costs import Costs
from virtualflow.sim.engine import Disturbance, WatchEvent, simulate
from virtualflow.sim.result import Run

COSTS = Costs("some", boot=7.0, resume=5.0, shrink=0.5, grow=3.0, grow_pause=0.5, restart=6.0)
MOST_EVENTS = 5000  # no trial needs a tenth of that
COUNTS = (1, 2, 3, 4)
TABLE = Table(  # "narrow" runs on V100s only, and nothing on a device beside it
    {
        "v100": {(name, count): 2.0 * count**0.8 for name in ("wide", "narrow") for count in COUNTS},
        "k80": {("wide", count): 0.5 * count**0.8 for count in COUNTS} | {("narrow", count): 0.0 for count in COUNTS},
    },
    {
        "v100": {
            (("wide", 1), ("wide", 1)): 1.4,
            (("wide", 1), ("narrow", 1)): 0.0,
            (("narrow", 1), ("wide", 1)): 0.0,
            (("narrow", 1), ("narrow", 1)): 0.0,
        },
        "k80": {(("wide", 1), ("wide", 1)): 0.3},
    },
)


@dataclass(frozen=True, slots=True)
class Trial:
    """A trace, a cluster, and what happens to them."""

    jobs: tuple[Job, ...]
    pools: tuple[Pool, ...]
    events: tuple[Disturbance, ...]


@st.composite
def trials(draw: st.DrawFn, *, changes: bool = True) -> Trial:
    pools = parse_pools(draw(st.sampled_from(("V100:4", "V100:2,K80:4", "K80:2,V100:2+1"))))
    jobs, seconds = [], 0.0
    for number in range(draw(st.integers(1, 6))):
        seconds += draw(st.sampled_from((0.0, 10.0, 200.0, 360.0)))
        demand = draw(st.integers(1, 4))
        jobs.append(
            Job(
                str(number),
                seconds,
                demand,
                draw(st.sampled_from((20.0, 300.0, 2000.0))),
                draw(st.sampled_from((LINEAR, "wide", "narrow"))),
                priority=draw(st.sampled_from((1.0, 3.0, 9.0))),
                min=draw(st.integers(1, demand)) if changes else 1,
            )
        )
    return Trial(tuple(jobs), pools, tuple(_events(draw, jobs, names_of(pools), changes)))


def _events(draw: st.DrawFn, jobs: list[Job], devices: tuple[str, ...], changes: bool) -> Iterator[Disturbance]:
    """In the end all devices are back, and nobody asks for more than one at least: everyone can come to an end."""
    seconds, lost = 0.0, set[str]()
    known = {job.id: job for job in jobs}
    for _ in range(draw(st.integers(0, 8))):
        seconds += draw(st.sampled_from((0.0, 5.0, 90.0, 400.0, 2500.0)))
        what = draw(st.sampled_from(("lose", "return", "change") if changes else ("lose", "return")))
        if what == "change":
            job = known[draw(st.sampled_from(sorted(known)))]
            demand = draw(st.integers(1, 4))
            priority, minimum = draw(st.sampled_from((1.0, 3.0, 9.0))), draw(st.integers(1, demand))
            known[job.id] = replace(job, demand=demand, virtual_nodes=0, priority=priority, min=minimum)
            yield JobChanged(seconds, known[job.id])
            continue
        there = [name for name in devices if (name in lost) == (what == "return")]
        some = tuple(name for name in there if draw(st.booleans()))
        lost = lost - set(some) if what == "return" else lost | set(some)
        if some:
            yield DevicesJoined(seconds, some) if what == "return" else DevicesLost(seconds, some)
    seconds = max(seconds, jobs[-1].arrival_seconds) + 500.0
    if lost:
        yield DevicesJoined(seconds, tuple(name for name in devices if name in lost))
    if changes:
        for job in known.values():
            yield JobChanged(seconds, replace(job, min=1))


def run(trial: Trial, policy: Policy, check: WatchEvent = lambda *_: None, costs: Costs = COSTS) -> Run:
    events = itertools.count()

    def watch(scheduler: Scheduler, event: Event) -> None:
        assert next(events) < MOST_EVENTS, f"no end: {event}, {scheduler.jobs}"
        check(scheduler, event)

    return simulate(trial.jobs, trial.pools, policy, TABLE, costs, failures=iter(trial.events), watch=watch)
