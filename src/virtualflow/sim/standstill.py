"""A simulation that would never end: a policy moves its jobs so often that none of them gets to its next step."""

from __future__ import annotations

from collections.abc import Collection

from virtualflow.cluster.policies.base import Policy
from virtualflow.errors import PolicyError
from virtualflow.sim.costs import Costs
from virtualflow.sim.execution import Execution

WAKES = 1000  # between two looks: one look visits every job


class Standstill:
    """Looks at the steps of all jobs now and then, and raises where devices are held and nothing is computed."""

    def __init__(self, policy: Policy, costs: Costs) -> None:
        self._policy, self._costs = policy, costs
        self._wakes = 0
        self._since = 0.0
        self._before: dict[str, float] = {}

    def woken(self, seconds: float, executions: Collection[Execution]) -> None:
        """The policy is about to decide once more, because time has passed."""
        self._wakes += 1
        if self._wakes < WAKES or seconds - self._since < 10 * self._costs.longest:
            return
        running = sum(bool(execution.devices) for execution in executions)
        now = {execution.job.id: execution.steps_at(seconds) for execution in executions}
        if running and all(self._before.get(job, 0.0) == steps for job, steps in now.items()):
            raise PolicyError(self._message(seconds))
        self._wakes, self._since, self._before = 0, seconds, now

    def _message(self, seconds: float) -> str:
        happened = (
            f"policy {self._policy.name} would never end: in its last {self._wakes} decisions, "
            f"{seconds - self._since:.0f} s, no job made a step"
        )
        if not self._costs.longest:
            return f"{happened}, although devices are assigned."
        return (
            f"{happened}, because each change of a job's devices takes up to {self._costs.longest:g} s "
            f"(--costs {self._costs.name}). Use longer rounds (--round-seconds), or --costs none."
        )
