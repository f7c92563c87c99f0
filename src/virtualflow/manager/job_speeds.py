"""How fast each job is on what: from its own steps, and until there are some, from what else is known of its script."""

from __future__ import annotations

import logging
from collections.abc import Callable

from virtualflow.cluster.throughput.learnt import SCRIPT, Guess, Learnt, StepModel, fit, from_profile
from virtualflow.core.devices import Pool
from virtualflow.core.job_view import MeasuredSpeed, PredictedSpeed, SpeedView
from virtualflow.core.step_times import TimedSteps, TypeShares
from virtualflow.errors import VirtualFlowError
from virtualflow.job.history import Watch
from virtualflow.manager.record import Record
from virtualflow.manager.records import Records
from virtualflow.solver import profile_files
from virtualflow.system.home import profiles_of

GROWTH = 1.2  # of the number of steps, before they are fitted again
ALIKE, OTHER = 0.2, 0.5  # doubt about what another job of the script took: with the same arguments, with others

_log = logging.getLogger(__name__)


class JobSpeeds:
    """Learns the speeds that *learnt* tells policies. *watch* is the stream of a job that has started."""

    def __init__(self, learnt: Learnt, records: Records, watch: Callable[[str], Watch]) -> None:
        self._learnt = learnt
        self._records = records
        self._watch = watch
        self._fitted: dict[str, tuple[int, tuple[str, ...]]] = {}  # how many steps, and on which types

    def look_at(self, record: Record, types: tuple[str, ...]) -> bool:
        """Take in what is new of a job; return whether its speeds are other ones than was thought."""
        steps, done = self._watch(record.id).times.steps, self._fitted.get(record.id)
        is_old = done is not None and done[1] == types and steps < GROWTH * done[0] + 1
        if record.terms.virtual_nodes is None or is_old:
            return False
        self._fitted[record.id] = steps, types
        return self._learnt.know(record.id, self.model(record, types))

    def forget(self, job_id: str) -> None:
        self._fitted.pop(job_id, None)
        self._learnt.forget(job_id)

    def measured(self, record: Record) -> tuple[TimedSteps, ...]:
        """What its steps took, in this launch and those before."""
        return self._watch(record.id).times.measured() or record.measured_steps

    def _has_steps(self, record: Record) -> bool:
        return bool(record.measured_steps or self._watch(record.id).times.steps)

    def model(self, record: Record, types: tuple[str, ...]) -> StepModel:
        assert record.terms.virtual_nodes is not None
        return fit(self._guess(record, types), record.terms.virtual_nodes, self.measured(record))

    def of_record(self, record: Record, types: tuple[str, ...]) -> StepModel | None:
        """What its record says, without its stream where it has ended; None for what never had virtual nodes."""
        if record.terms.virtual_nodes is None:
            return None
        steps = record.measured_steps if record.is_over else self.measured(record)
        return fit(self._guess(record, types) if steps else Guess.linear(types), record.terms.virtual_nodes, steps)

    def _guess(self, record: Record, types: tuple[str, ...]) -> Guess:
        known = self._from_profile(record) or self._from_others(record, types) or Guess.linear(types)
        return known.on(types)

    def _from_profile(self, record: Record) -> Guess | None:
        folder = profiles_of(record.description.script)
        if not folder.is_dir():
            return None
        examples = self._watch(record.id).examples
        try:
            if profile_files.are_staged(folder):
                return None  # they tell which grid is best, not how fast a job is on types and numbers of devices
            workload = profile_files.read_all(folder)
            return from_profile(
                workload, examples // record.terms.virtual_nodes if examples and record.terms.virtual_nodes else None
            )
        except (VirtualFlowError, OSError) as error:
            _log.warning("the profiles of %s are of no use to job %s: %s", record.description.script, record.id, error)
            return None

    def _from_others(self, record: Record, types: tuple[str, ...]) -> Guess | None:
        """What the newest other job of the script took, one with the same arguments if there is one."""
        best: Record | None = None
        for other in reversed(self._records.all()):
            is_candidate = other.id != record.id and other.description.script == record.description.script
            if is_candidate and other.terms.virtual_nodes is not None and self._has_steps(other):
                best = best or other
                if _is_alike(other, record):
                    best = other
                    break
        if best is None:
            return None
        model = fit(Guess.linear(types), best.terms.virtual_nodes or 1, self.measured(best))
        if not model.measured:
            return None  # on types that are gone
        *seconds, fixed, more = model.mean.tolist()
        doubt = ALIKE if _is_alike(best, record) else OTHER
        return Guess(dict(zip(types, seconds, strict=True)), fixed, more, doubt, SCRIPT, model.doubtful)

    def view(self, record: Record, pools: tuple[Pool, ...]) -> SpeedView | None:
        """What is known, for people. *pools* are all devices."""
        if record.terms.virtual_nodes is None:
            return None
        model = self.model(record, tuple(pool.device_type for pool in pools))
        met = [MeasuredSpeed(_counts(m.layout), _waves(m.layout), m.steps, m.seconds, model.seconds(m.layout)[0])
               for m in model.measured]  # fmt: skip
        most = record.max_devices
        offers: list[tuple[Pool, ...]] = [
            (Pool(p.device_type, (count,)),) for p in pools for count in _numbers(min(most, p.count))
        ]
        offers += [pools] if len(pools) > 1 else []
        predicted: dict[TypeShares, PredictedSpeed] = {}
        for offer in offers:
            layout, seconds, deviation = model.prediction(offer, most)
            predicted[layout] = PredictedSpeed(_counts(layout), seconds, deviation)
        return SpeedView(model.source, sorted(model.doubtful), met, list(predicted.values()))


def _is_alike(other: Record, record: Record) -> bool:
    nodes, arguments = record.terms.virtual_nodes, record.description.arguments
    return (other.description.arguments, other.terms.virtual_nodes) == (arguments, nodes)


def _counts(layout: TypeShares) -> dict[str, int]:
    return {share.device_type: share.devices for share in layout}


def _waves(layout: TypeShares) -> dict[str, int]:
    return {share.device_type: share.waves for share in layout}


def _numbers(most: int) -> list[int]:
    """1, 2, 4, ... and the most."""
    return sorted({min(most, 1 << power) for power in range(most.bit_length() + 1)}) if most else []
