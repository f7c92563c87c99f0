"""The figures by which schedulers are compared, and their intervals over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields

from virtualflow.sim.result import Run

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Metrics:
    """Of one run. JCT is the job completion time: from arrival to end."""

    average_jct_seconds: float
    median_jct_seconds: float
    tail_jct_seconds: float  # the 99th percentile
    makespan_seconds: float  # from the first arrival to the last end
    average_queueing_seconds: float
    median_queueing_seconds: float
    utilization: float  # assigned device-seconds, of all
    productive: float  # those in which devices computed, of all
    restarting: float  # those that starts, restarts and resizes took
    unused: float  # those of devices that a job had and did not use
    free: float  # those of devices without a job
    lost: float  # those of devices that had failed
    resizes: int
    fairness: float  # Jain's index of slowdowns: 1 if every job is slowed down alike


def of(run: Run) -> Metrics:
    jcts = sorted(job.jct_seconds for job in run.jobs)
    waits = sorted(job.queueing_seconds for job in run.jobs)
    accounts = run.accounts
    return Metrics(
        average_jct_seconds=math.fsum(jcts) / len(jcts),
        median_jct_seconds=upper_median(jcts),
        tail_jct_seconds=jcts[math.ceil(0.99 * len(jcts)) - 1],
        makespan_seconds=accounts.end_seconds - accounts.start_seconds,
        average_queueing_seconds=math.fsum(waits) / len(waits),
        median_queueing_seconds=upper_median(waits),
        utilization=accounts.share(accounts.spent.assigned),
        productive=accounts.share(accounts.spent.productive),
        restarting=accounts.share(accounts.spent.restarting),
        unused=accounts.share(accounts.spent.unused),
        free=accounts.share(accounts.free),
        lost=accounts.share(accounts.lost),
        resizes=sum(job.resizes for job in run.jobs),
        fairness=jain([job.jct_seconds / job.alone_seconds for job in run.jobs]),
    )


def upper_median(ordered: Sequence[float]) -> float:
    """Of an even number, the larger of the two in the middle: what the paper calls the median."""
    return ordered[len(ordered) // 2]


def jain(values: Sequence[float]) -> float:
    return math.fsum(values) ** 2 / (len(values) * math.fsum(value * value for value in values))


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over seeds, and half the width of its 95% confidence interval; one seed has none."""

    mean: float
    half_width: float | None


def interval(values: Sequence[float]) -> Interval:
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Interval(mean, None)
    from scipy.special import stdtrit  # here, since it takes a fifth of a second to load

    quantile = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2))  # of Student's t
    return Interval(mean, quantile * statistics.stdev(values) / math.sqrt(len(values)))


def intervals(runs: Sequence[Metrics]) -> dict[str, Interval]:
    return {metric.name: interval([float(getattr(run, metric.name)) for run in runs]) for metric in fields(Metrics)}
