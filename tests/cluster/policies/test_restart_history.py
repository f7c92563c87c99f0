"""What Pollux and Sia remember of jobs: the most devices, and how much of a life went into restarts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from virtualflow.cluster.job import Job, ScheduledJob
from virtualflow.cluster.policies.base import NOTHING, Grant
from virtualflow.cluster.policies.restart_history import RESTART_SECONDS, RestartHistory


def state(name: str, demand: int = 16, least: int = 1, **counts: int) -> ScheduledJob:
    made = ScheduledJob(Job(name, 0.0, demand, 1.0, min=least))
    if counts:
        made.change(0.0, tuple(f"{name}-{number}" for number in range(sum(counts.values()))), counts, None)
    return made


def snapshot(*running: ScheduledJob) -> Any:
    return SimpleNamespace(running={each.id: each for each in running})


def test_a_job_may_have_twice_the_most_that_it_ever_had() -> None:
    history, job = RestartHistory(), state("a")
    assert history.limit(job.job) == 1
    for count, limit in ((1, 2), (2, 4), (1, 4), (4, 8), (16, 16)):
        history.decision([(job, "V100", count)], snapshot())
        assert history.limit(job.job) == limit
    assert history.limit(state("b", least=3).job) == 3
    history.forget_others(["b"])
    assert history.limit(job.job) == 1


def test_each_restart_makes_another_allocation_count_less() -> None:
    history, job = RestartHistory(), state("a", V100=1)
    before = history.kept_part(job, now=300.0)
    history.decision([(job, "V100", 2)], snapshot(job))
    assert before == pytest.approx(300 / (300 + RESTART_SECONDS))
    assert history.kept_part(job, now=300.0) == pytest.approx((300 - RESTART_SECONDS) / (300 + RESTART_SECONDS))
    assert history.kept_part(job, now=10.0) == 0.0


def test_what_is_not_chosen_gets_nothing_and_what_stays_is_no_change() -> None:
    history = RestartHistory()
    stays, grows, goes, comes = state("stays", V100=2), state("grows", V100=1), state("goes", V100=1), state("comes")
    chosen = [(stays, "V100", 2), (grows, "V100", 3), (comes, "P100", 8)]
    decision = history.decision(chosen, snapshot(stays, grows, goes))
    assert decision.grants == {"goes": NOTHING, "comes": Grant({"P100": 8}), "grows": Grant({"V100": 3})}
    assert list(decision.grants) == ["goes", "comes", "grows"]  # room first, then the large ones
