"""The jobs of a live cluster in virtual time: what another policy would have done to them.

A job's length is the work that it has done: the time that it had devices, each stretch at the speed that was learnt for
them, without what its starts took. So the time in which a policy does that work can be compared with the time that it
really took, whether the job was done, failed, or still runs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from virtualflow.cluster.holding import HeldThroughput
from virtualflow.cluster.job import Job
from virtualflow.cluster.recorded import RecordedCluster, RecordedJob
from virtualflow.cluster.throughput.learnt import Learnt, StepModel
from virtualflow.cluster.throughput.model import Throughput
from virtualflow.core.devices import Pool, type_of
from virtualflow.errors import TraceError
from virtualflow.sim import compare
from virtualflow.sim.compare import Comparison, PolicyResult, Setting
from virtualflow.sim.costs import Costs
from virtualflow.sim.engine import ReportProgress
from virtualflow.sim.execution import Spent
from virtualflow.sim.result import Accounts, JobResult, Run, Segment
from virtualflow.sim.trace import Trace

MOST_OF_A_RUN = 0.9  # what starts are taken to have cost at most, of the time that a job had devices
HAPPENED = "what happened"


@dataclass(frozen=True, slots=True)
class Past:
    """*jobs* are those that had devices, and *trace* has the work that they did, from second 0 on."""

    recorded: RecordedCluster
    jobs: tuple[RecordedJob, ...]
    throughput: Throughput
    costs: Costs
    trace: Trace

    @classmethod
    def of(cls, recorded: RecordedCluster, costs: Costs) -> Past:
        jobs = tuple(each for each in recorded.jobs if _seconds(each, recorded.now) > 0)
        if not jobs:
            raise TraceError("no job of the manager's had devices in that time. --since 30d looks further back.")
        throughput, zero = _speeds(jobs), min(each.job.arrival_seconds for each in jobs)
        simulated = tuple(
            replace(
                each.job,
                arrival_seconds=each.job.arrival_seconds - zero,
                steps=_work(each, recorded.now, throughput, costs),
            )
            for each in jobs
        )
        return cls(recorded, jobs, throughput, costs, Trace(simulated, "the jobs of a cluster"))

    def compare(self, names: Sequence[str], setting: Setting, report: ReportProgress | None = None) -> Comparison:
        """What happened, the manager's own policy as it would have done it here, and the policies called *names*."""
        own = replace(setting, options=self.recorded.options)
        now = compare.compare(self.trace, [self.recorded.policy], own, report=report).policies[self.recorded.policy]
        found: dict[str, PolicyResult] = dict(compare.side_by_side({HAPPENED: self.happened()}).policies)
        found[f"{self.recorded.policy}, as now"] = now
        return Comparison(found | dict(compare.compare(self.trace, names, setting, report=report).policies))

    def happened(self) -> Run:
        """What the manager really did, as a run. A job that has not ended counts up to now."""
        zero = min(each.job.arrival_seconds for each in self.jobs)
        simulated = {job.id: job for job in self.trace.jobs}
        results = [self._result(each, simulated[each.job.id], zero) for each in self.jobs]
        results.sort(key=lambda result: result.end_seconds)
        # The cluster may have had more devices then.
        devices = max(sum(pool.count for pool in self.recorded.pools), _most_at_once(results))
        accounts = Accounts(devices, 0.0, results[-1].end_seconds)
        held = math.fsum(
            len(segment.devices) * (segment.end_seconds - segment.start_seconds)
            for result in results
            for segment in result.segments
        )
        accounts.spent = Spent(productive=held)
        accounts.free = max(0.0, accounts.total - held)  # jobs may have shared devices
        return Run(self.recorded.policy, tuple(results), accounts, sum(len(each.held) for each in self.jobs))

    def _result(self, each: RecordedJob, job: Job, zero: float) -> JobResult:
        now = self.recorded.now
        segments = tuple(
            Segment(held.begin - zero, (held.end or now) - zero, held.devices)
            for held in each.held
            if (held.end or now) > held.begin
        )
        offers = [(Pool(pool.device_type, (min(job.demand, pool.count),)),) for pool in self.recorded.pools]
        alone = job.steps / max(self.throughput.speed(job, offer).steps_per_second for offer in offers)
        end, alone = (each.ended or now) - zero, self.costs.boot + alone
        return JobResult(job, segments[0].start_seconds, end, each.resizes, alone, segments)


def _most_at_once(results: Iterable[JobResult]) -> int:
    """The largest number of devices that jobs had at one time."""
    stretches = [segment for result in results for segment in result.segments]
    taken = [(segment.start_seconds, len(segment.devices)) for segment in stretches]
    left = [(segment.end_seconds, -len(segment.devices)) for segment in stretches]
    return max(accumulate(count for _, count in sorted(taken + left)), default=0)


def _speeds(jobs: Iterable[RecordedJob]) -> Throughput:
    """What was learnt of each job; one that made no steps is twice as fast on twice the devices."""
    learnt = Learnt()
    for each in jobs:
        if (known := each.speed) is not None:
            mean = np.array(known.seconds)
            nothing = np.zeros((len(mean), len(mean)))  # of its uncertainty: a simulation takes the mean
            learnt.know(each.job.id, StepModel(known.virtual_nodes, known.types, mean, nothing, known.source))
    return HeldThroughput(learnt)


def _seconds(each: RecordedJob, now: float) -> float:
    """How long it had devices."""
    return math.fsum(max(0.0, (held.end or now) - held.begin) for held in each.held)


def _work(each: RecordedJob, now: float, throughput: Throughput, costs: Costs) -> float:
    """In the unit of `Learnt`: seconds on its full demand, of the type where that is fastest."""
    starts = costs.boot + costs.resume * max(0, each.launches - 1)
    work = math.fsum(
        throughput.speed(each.job, _pools(held.devices)).steps_per_second * max(0.0, (held.end or now) - held.begin)
        for held in each.held
    )
    return work * (1 - min(MOST_OF_A_RUN, starts / _seconds(each, now)))


def _pools(devices: Iterable[str]) -> tuple[Pool, ...]:
    return tuple(Pool(name, (count,)) for name, count in sorted(Counter(map(type_of, devices)).items()))
