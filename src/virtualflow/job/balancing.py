"""A job whose devices are not all alike: the mapping that suits them at the start, and when their speed changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from importlib.metadata import version

from virtualflow.core import profile
from virtualflow.core.balance import Balancer, Speeds
from virtualflow.core.devices import CPU, Pool, type_of
from virtualflow.core.profile import Workload
from virtualflow.core.roster import Roster
from virtualflow.core.roster_events import RemapWanted, ResizeWanted, RosterEvent, SizesKnown
from virtualflow.errors import VirtualFlowError
from virtualflow.job.folder import JobSpec
from virtualflow.job.wire_messages import StepTime, TrainerMade
from virtualflow.solver.node_shares import Plan
from virtualflow.solver.search import on_one_machine, solve_fixed


def speeds_of(job: JobSpec) -> Speeds | None:
    """How fast the job's devices are, if there is anything to know or to watch."""
    if job.workload is None:
        return Speeds() if job.rebalance else None
    return Speeds(profile.from_json(job.workload, "the job's profiles"))


class Balancing:
    """Decides, for one job, how many virtual nodes each device runs. It reads the roster, and returns events for it."""

    def __init__(self, job: JobSpec, roster: Roster, speeds: Speeds | None, warn: Callable[[str], None]) -> None:
        """*warn* shows a line of text to the user."""
        self._job = job
        self._roster = roster
        self._warn = warn
        self._balancer = Balancer(speeds) if speeds is not None and job.rebalance else None
        self.typed = any(type_of(device) != CPU for device in job.devices)
        self.mixed = len({type_of(device) for device in job.devices}) > 1 and not job.description.emulated
        self.overran_waves = 0

    @property
    def needs_step_times(self) -> bool:
        return self._balancer is not None or bool(self._job.description.emulated)

    def on_trainer(self, trainer: TrainerMade) -> Iterator[RosterEvent]:
        """The script has made its Trainer: now the mapping can be solved. Each event is to be handled before the next.

        The first worker to report counts.
        """
        if self._roster.mapping is not None:
            return
        yield SizesKnown(trainer.node_sizes)
        speeds = self._roster.speeds
        if speeds is None or speeds.workload is None:
            return
        for stale in _stale(speeds.workload, trainer.parameters):
            self._warn(f"{stale}. Make it again: vf profile {self._job.description.script} ...")
        if self._job.description.owners is not None or len(set(trainer.node_sizes)) > 1:
            return
        counts = Counter(type_of(device) for device in self._job.devices)
        pools = [Pool(name, (count,)) for name, count in counts.items()]
        try:
            workload, apart = on_one_machine(speeds.workload, pools)
            plan = solve_fixed(workload, apart, trainer.node_sizes[0], len(trainer.node_sizes))
        except VirtualFlowError as error:
            self._warn(f"no best mapping is known: {error}")
            return
        self._warn(_summary(plan))
        if plan.devices < len(self._job.devices):
            yield ResizeWanted(self._used(plan))  # the others leave after the first step

    def on_step_time(self, device: str, report: StepTime) -> RemapWanted | None:
        """A worker reports how long its virtual nodes took; return the mapping that would be better by now."""
        roster, mapping = self._roster, self._roster.mapping
        self.overran_waves += report.overran
        if self._balancer is None or mapping is None or roster.pending is not None:
            return None
        if not report.seconds:  # of a model in stages: its grid follows the devices' number alone
            return None
        if report.generation != roster.generation.number:
            self._balancer.forget()
            return None
        sizes = [roster.node_sizes[node] for node in mapping.nodes_of(device)]
        self._balancer.note(device, sizes, report.seconds)
        if device != roster.generation.devices[0]:
            return None
        better = self._balancer.better(report.step, mapping, roster.node_sizes)
        if better is None:
            return None
        self._balancer.forget()
        return RemapWanted(better)

    def _used(self, plan: Plan) -> tuple[str, ...]:
        left = Counter[str]()
        for share in plan.shares:
            left[share.device_type] += share.count
        used = []
        for device in self._job.devices:
            if left[type_of(device)] > 0:
                left[type_of(device)] -= 1
                used.append(device)
        return tuple(used)


def _stale(workload: Workload, parameters: int) -> list[str]:
    """What the profiles were made for and is no longer so."""
    torch, stale = version("torch"), []
    for name, known in workload.profiles.items():
        made_for, made_with = known.facts.get("parameters", parameters), known.facts.get("torch", torch)
        if made_for != parameters:
            stale.append(f"the profile of {name} is stale: its model had {made_for} parameters, this one {parameters}")
        if made_with.split("+")[0] != torch.split("+")[0]:
            stale.append(f"the profile of {name} is stale: it was made with torch {made_with}, this is {torch}")
    return stale


def _summary(plan: Plan) -> str:
    parts = ", ".join(
        f"{share.count} x {share.device_type} with {share.virtual_nodes} virtual nodes each" for share in plan.shares
    )
    return f"mapping: {parts}; predicted: {plan.step_seconds:.3g} s a step, {plan.examples_per_second:.4g} examples/s"
