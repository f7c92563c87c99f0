"""A job whose devices are not all alike: the mapping that suits them at the start, and when their speed changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

from virtualflow.core import profile
from virtualflow.core.balance import Balancer, Speeds
from virtualflow.core.devices import CPU, Pool, type_of
from virtualflow.core.profile import Workload
from virtualflow.core.roster import Action, Roster
from virtualflow.errors import VirtualFlowError
from virtualflow.job.folder import JobSpec
from virtualflow.solver.node_shares import Plan
from virtualflow.solver.search import on_one_machine, solve_fixed


def speeds_of(job: JobSpec) -> Speeds | None:
    """How fast the job's devices are, if there is anything to know or to watch."""
    if job.workload is None:
        return Speeds() if job.rebalance else None
    return Speeds(profile.from_json(job.workload, "the job's profiles"))


class Balancing:
    """Decides, for one job, how many virtual nodes each device runs. The roster carries it out."""

    def __init__(self, job: JobSpec, roster: Roster, speeds: Speeds | None, say: Callable[[str], None]) -> None:
        self._job = job
        self._roster = roster
        self._say = say
        self._balancer = Balancer(speeds) if speeds is not None and job.rebalance else None
        self.typed = any(type_of(device) != CPU for device in job.devices)
        self.mixed = len({type_of(device) for device in job.devices}) > 1 and not job.emulated
        self.overran = 0

    @property
    def watches(self) -> bool:
        return self._balancer is not None or bool(self._job.emulated)

    def sizes_known(self, node_sizes: Sequence[int], parameters: int) -> list[Action]:
        """The script has made its Trainer: now the mapping can be solved."""
        if self._roster.mapping is not None:
            return []
        actions = self._roster.sizes_known(node_sizes)
        speeds = self._roster.speeds
        if speeds is not None and speeds.workload is not None:
            for stale in _stale(speeds.workload, parameters):
                self._say(f"{stale}. Make it again: vf profile {self._job.script} ...")
        if speeds is None or speeds.workload is None or self._job.owners is not None or len(set(node_sizes)) > 1:
            return actions
        counts = Counter(type_of(device) for device in self._job.devices)
        pools = [Pool(name, (count,)) for name, count in counts.items()]
        try:
            workload, apart = on_one_machine(speeds.workload, pools)
            plan = solve_fixed(workload, apart, node_sizes[0], len(node_sizes))
        except VirtualFlowError as error:
            self._say(f"no best mapping is known: {error}")
            return actions
        self._say(_told(plan))
        if plan.devices < len(self._job.devices):
            self._roster.target = self._used(plan)  # the others leave after the first step
        return actions

    def note(self, device: str, message: dict[str, Any]) -> list[Action]:
        """A worker tells how long its virtual nodes took."""
        roster, mapping = self._roster, self._roster.mapping
        self.overran += message["overran"]
        if self._balancer is None or mapping is None or roster.pending is not None:
            return []
        if message["generation"] != roster.generation.number:
            self._balancer.forget()
            return []
        sizes = [roster.node_sizes[node] for node in mapping.nodes_of(device)]
        self._balancer.note(device, sizes, message["pace"])
        if device != roster.generation.devices[0]:
            return []
        better = self._balancer.better(message["step"], mapping, roster.node_sizes)
        if better is None:
            return []
        self._balancer.forget()
        return roster.remap(better)

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
    torch, told = version("torch"), []
    for name, known in workload.profiles.items():
        made_for, made_with = known.facts.get("parameters", parameters), known.facts.get("torch", torch)
        if made_for != parameters:
            told.append(f"the profile of {name} is stale: its model had {made_for} parameters, this one {parameters}")
        if made_with.split("+")[0] != torch.split("+")[0]:
            told.append(f"the profile of {name} is stale: it was made with torch {made_with}, this is {torch}")
    return told


def _told(plan: Plan) -> str:
    parts = ", ".join(
        f"{share.count} x {share.device_type} with {share.virtual_nodes} virtual node(s) each" for share in plan.shares
    )
    return f"mapping: {parts}; predicted: {plan.step_seconds:.3g} s a step, {plan.examples_per_second:.4g} examples/s"
