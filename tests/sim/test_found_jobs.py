"""Jobs that were there before the scheduler, wherever they are, under every policy."""

from __future__ import annotations

import heapq

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.disturbed import TABLE, Trial, trials
from tests.sim.test_disturbances import EVERY, EXAMPLES
from virtualflow.cluster.messages import (
    Event,
    JobArrived,
    JobChanged,
    JobEnded,
    JobsRestored,
    ProgressReported,
    WakeAt,
    Woken,
)
from virtualflow.cluster.policies import registry
from virtualflow.cluster.scheduler import Scheduler
from virtualflow.core.devices import names_of, type_of


def after_an_hour(scheduler: Scheduler, events: list[Event]) -> None:
    """Tell the scheduler of events, and wake it when it wants to be."""
    wakes: list[float] = []
    now = 0.0
    for event in [*events, Woken(events[-1].seconds + 3600)]:
        while True:
            due = min(event.seconds, wakes[0] if wakes else event.seconds)
            now = max(now, due)
            scheduler.handle(
                ProgressReported(now, {name: min(now, state.job.steps) for name, state in scheduler.jobs.items()})
            )
            if wakes and wakes[0] <= event.seconds:
                heapq.heappop(wakes)
                actions = scheduler.handle(Woken(now))
            elif isinstance(event, JobChanged | JobEnded) and _name(event) not in scheduler.jobs:
                break
            else:
                actions = scheduler.handle(event)
                due = event.seconds + 1
            for action in actions:
                if isinstance(action, WakeAt):
                    heapq.heappush(wakes, action.seconds)
            if due > event.seconds:
                break


def _name(event: JobChanged | JobEnded) -> str:
    return event.job.id if isinstance(event, JobChanged) else event.job_id


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=EXAMPLES, deadline=None)
@given(trial=trials(), data=st.data())
def test_they_go_on_and_nobody_raises(name: str, trial: Trial, data: st.DataObject) -> None:
    policy, options = EVERY[name]
    scheduler = Scheduler(trial.pools, registry.make(policy, options), TABLE)
    free, running, waiting = list(names_of(trial.pools)), [], []
    for job in trial.jobs[:4]:
        usable = [device for device in free if TABLE.usable(job, type_of(device))]
        some = tuple(device for device in usable if data.draw(st.booleans()))[: job.demand]
        free = [device for device in free if device not in some]
        if some:
            running.append((job, some))
        else:
            waiting.append(job)
    events: list[Event] = [JobsRestored(0.0, tuple(running), tuple(waiting))]
    events += [JobArrived(job.arrival_seconds, job) for job in trial.jobs[4:]]
    events += trial.events
    if data.draw(st.booleans()):
        events.append(JobEnded(data.draw(st.sampled_from((100.0, 800.0))), trial.jobs[0].id))
    after_an_hour(scheduler, sorted(events, key=lambda event: event.seconds))
    snapshot = scheduler.snapshot()
    # An hour after all devices are back and nobody has a minimum: no device is idle that a job without any could use.
    waiting_then = list(snapshot.queue)
    if policy in ("priority", "fifo"):
        waiting_then = waiting_then[:1]  # the first one blocks
    elif policy.startswith("las-mixed") or options.round == "pow2":
        waiting_then = []  # what they leave over is left over
    for state in waiting_then:
        assert not any(snapshot.free[kind] >= state.job.demand for kind in snapshot.types_for(state.job))
    for state in snapshot.running.values():
        assert state.job.min <= state.allocation <= state.job.demand
        assert all(TABLE.usable(state.job, kind) for kind in state.counts)
