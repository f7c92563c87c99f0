"""Several policies on the same traces, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from virtualflow.cluster.policies import registry
from virtualflow.cluster.policies.base import Options
from virtualflow.cluster.throughput.model import Throughput
from virtualflow.core.devices import Pool
from virtualflow.sim import metrics
from virtualflow.sim.costs import Costs
from virtualflow.sim.engine import ReportProgress, simulate
from virtualflow.sim.failures import Failures
from virtualflow.sim.generate import again
from virtualflow.sim.metrics import Interval
from virtualflow.sim.result import Run
from virtualflow.sim.trace import Trace

Intervals = Mapping[str, Interval]


def on_machines(pools: Sequence[Pool], size: int | None) -> tuple[Pool, ...]:
    """The same devices on machines of one size, so that nobody has to spell out a cluster of 312 machines."""
    if size is None:
        return tuple(pools)
    split = []
    for pool in pools:
        whole, rest = divmod(pool.count, size)
        split.append(Pool(pool.device_type, (size,) * whole + ((rest,) if rest else ())))
    return tuple(split)


@dataclass(frozen=True, slots=True)
class Setting:
    """All that is the same for every policy."""

    pools: tuple[Pool, ...]
    throughput: Throughput
    costs: Costs
    options: Options = Options()  # noqa: RUF009, frozen
    failures: Failures = Failures()  # noqa: RUF009, frozen


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """One policy: its first run, and its figures over all seeds."""

    run: Run
    intervals: Intervals

    @property
    def half_widths(self) -> dict[str, float]:
        """Of the 95% intervals; empty with one seed."""
        return {
            name: interval.half_width for name, interval in self.intervals.items() if interval.half_width is not None
        }

    def as_json(self) -> dict[str, Any]:
        return {
            **{name: interval.mean for name, interval in self.intervals.items()},
            "intervals": self.half_widths,
            "jobs": [
                {
                    "id": job.job.id,
                    "arrival_seconds": job.job.arrival_seconds,
                    "start_seconds": job.start_seconds,
                    "end_seconds": job.end_seconds,
                    "resizes": job.resizes,
                }
                for job in sorted(self.run.jobs, key=lambda job: (job.job.arrival_seconds, job.job.id))
            ],
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    policies: Mapping[str, PolicyResult]


def side_by_side(runs: Mapping[str, Run]) -> Comparison:
    """Runs that were made elsewhere, by what they are to be called: real ones, most of all."""
    return Comparison({name: PolicyResult(run, metrics.intervals([metrics.of(run)])) for name, run in runs.items()})


def compare(
    trace: Trace, names: Sequence[str], setting: Setting, seeds: int = 1, report: ReportProgress | None = None
) -> Comparison:
    """Each policy on the trace and on *seeds* - 1 others like it."""
    traces = [again(trace, seed) for seed in range(seeds)]
    outcomes = {}
    for name in names:
        runs = [run(trace, name, setting, seed, report) for seed, trace in enumerate(traces)]
        outcomes[name] = PolicyResult(runs[0], metrics.intervals([metrics.of(run) for run in runs]))
    return Comparison(outcomes)


def run(trace: Trace, name: str, setting: Setting, seed: int = 0, report: ReportProgress | None = None) -> Run:
    """One policy on one trace; *seed* decides what breaks."""
    failures = replace(setting.failures, seed=setting.failures.seed + seed)
    return simulate(
        trace.jobs,
        setting.pools,
        registry.make(name, setting.options),
        setting.throughput,
        setting.costs,
        failures=failures.events(setting.pools, trace.jobs[0].arrival_seconds),
        report=report,
    )


def _seconds(name: str) -> Callable[[Intervals], str]:
    return lambda intervals: f"{intervals[name].mean:,.0f}{_half(intervals[name], ',.0f')}"


def _share(name: str) -> Callable[[Intervals], str]:
    return lambda intervals: f"{intervals[name].mean:.1%}{_half(intervals[name], '.1%')}"


def _number(name: str, spec: str) -> Callable[[Intervals], str]:
    return lambda intervals: f"{intervals[name].mean:{spec}}{_half(intervals[name], spec)}"


def _half(interval: Interval, spec: str) -> str:
    return "" if interval.half_width is None else f" ± {interval.half_width:{spec}}"


COLUMNS: tuple[tuple[str, Callable[[Intervals], str]], ...] = (
    ("average JCT, s", _seconds("average_jct_seconds")),
    ("median", _seconds("median_jct_seconds")),
    ("99th", _seconds("tail_jct_seconds")),
    ("makespan, s", _seconds("makespan_seconds")),
    ("median queueing, s", _seconds("median_queueing_seconds")),
    ("utilisation", _share("utilization")),
    ("productive", _share("productive")),
    ("resizes", _number("resizes", ",.0f")),
    ("fairness", _number("fairness", ".2f")),
)
