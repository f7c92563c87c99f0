"""Other plans than the best one, and why they lose."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from virtualflow.core.devices import Pool
from virtualflow.solver.node_shares import Plan, Share


def alternatives(best: Plan, others: Sequence[Plan]) -> list[tuple[Plan, str]]:
    """Other plans with why they lose, the best of them first."""
    seen, losers = {best.shares}, []
    for plan in sorted(others, key=lambda plan: plan.step_seconds):
        if plan.shares not in seen:
            seen.add(plan.shares)
            losers.append((plan, _why(plan, best)))
    return losers


def _why(plan: Plan, best: Plan) -> str:
    longer = plan.step_seconds - best.step_seconds
    compute, communication = (
        plan.compute_seconds - best.compute_seconds,
        plan.communication_seconds - best.communication_seconds,
    )
    if longer <= 1e-12 * best.step_seconds:
        return f"as fast, with {plan.devices} devices instead of {best.devices}"
    parts = []
    if compute > 0:
        parts.append(f"its slowest device computes {compute:.3g} s longer")
    if communication > 0:
        parts.append(f"communication takes {communication:.3g} s longer")
    if compute < 0:
        parts.append(f"{-compute:.3g} s less computing does not make up for it")
    if communication < 0:
        parts.append(f"{-communication:.3g} s less communication does not make up for it")
    return "; ".join(parts)


def subsets(pools: Sequence[Pool]) -> Iterator[tuple[Pool, ...]]:
    """Groups of device types worth a look beside all of them: every one up to four types, else single ones."""
    for number in range(1, len(pools) if len(pools) <= 4 else 2):
        yield from itertools.combinations(pools, number)


def even(plan: Plan, pools: Sequence[Pool]) -> tuple[Share, ...]:
    """The naive split of a plan's virtual nodes: the same on every device."""
    devices = sum(pool.count for pool in pools)
    fewest, more = divmod(plan.virtual_nodes, devices)
    shares, size = [], plan.shares[0].node_size
    for pool in pools:
        larger = min(more, pool.count)
        more -= larger
        for count, nodes in ((larger, fewest + 1), (pool.count - larger, fewest)):
            if count and nodes:
                shares.append(Share(pool.device_type, count, nodes, size))
    return tuple(shares)
