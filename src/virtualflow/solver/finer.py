"""What more and smaller virtual nodes would bring: a batch that can't be split to suit the devices can be cut finer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from virtualflow.core.devices import Pool
from virtualflow.core.profile import Workload
from virtualflow.errors import SolverError
from virtualflow.solver.node_shares import Plan
from virtualflow.solver.search import solve_fixed

CUTS = range(2, 9)  # smaller nodes than an eighth are slow, and no job needs them
WORTH_IT = 0.99  # of a step: less is not worth telling


def finer_plans(workload: Workload, pools: Sequence[Pool], plan: Plan) -> Iterator[Plan]:
    """Plans of the same batch in more virtual nodes, each faster than all with fewer."""
    best = plan.step_seconds
    node_size, virtual_nodes = plan.shares[0].node_size, plan.virtual_nodes
    for cut in CUTS:
        if node_size % cut:
            continue
        try:
            finer = solve_fixed(workload, pools, node_size // cut, virtual_nodes * cut)
        except SolverError:
            continue
        if finer.step_seconds < WORTH_IT * best:
            best = finer.step_seconds
            yield finer
