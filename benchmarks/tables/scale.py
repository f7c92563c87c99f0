"""Tables of the control plane and of large clusters, with a model of what a larger job would cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.tables.raw import results, table

LARGE = 10_000  # devices of the job that the model is for
LOSSES = ("a death", "a twelfth of them dies at once")
EVENTS = (*LOSSES, "half of them leave", "as many join")
COSTS = {"cpu_ms": "processor time", "megabytes": "traffic", "sent": "messages sent", "read": "messages read"}
Rows = Mapping[str, Mapping[str, float]]


def _jobs() -> dict[int, Rows]:
    """What was measured, by the number of workers."""
    found: dict[str, Any] = results("control-plane")["results"]
    return {int(workers): rows for workers, rows in sorted(found.items(), key=lambda item: int(item[0]))}


def events() -> str:
    rows = []
    for workers, measured in _jobs().items():
        for event in EVENTS:
            found = measured[event]
            cells = [f"{found['read']:,.0f}", f"{found['sent']:,.0f}", f"{found['megabytes']:,.1f} MB"]
            rows.append([f"{workers:,}", event, *cells, f"{found['cpu_ms'] / 1e3:.2f} s"])
    return table(["workers", "", "messages read", "sent", "traffic", "processor time of the coordinator"], rows)


def deaths() -> str:
    rows = []
    for workers, measured in _jobs().items():
        for event in LOSSES:
            found = measured[event]
            times = (found[key] for key in ("published_ms", "published_max_ms", "formed_ms", "formed_max_ms"))
            cells = [f"{milliseconds / 1e3:.2f} s" for milliseconds in times]
            rows.append([f"{workers:,}", event, f"{found['events']:.0f}", *cells])
    columns = ["workers", "", "times", "published after", "at most", "all in the new group after", "at most"]
    return table(columns, rows)


def idle() -> str:
    rows = []
    for workers, measured in _jobs().items():
        found, peak = measured["a second without events"], measured["all"]["peak_megabytes"]
        cells = [f"{found['read']:,.0f}", f"{found['cpu_ms'] / 10:.1f}%", f"{peak:,.0f} MB"]
        rows.append([f"{workers:,}", *cells])
    return table(["workers", "messages a second", "of a core", "memory, at most"], rows)


def model() -> str:
    """What each worker costs, and each pair of them, from the two largest jobs; and what that makes of a large one."""
    (few, small), (many, large) = list(_jobs().items())[-2:]
    rows = []
    for key, name in COSTS.items():
        per_few, per_many = small["a death"][key] / few, large["a death"][key] / many
        for_each_pair = max(0.0, (per_many - per_few) / (many - few))
        for_each = per_many - for_each_pair * many
        total = for_each * LARGE + for_each_pair * LARGE**2
        rows.append([name, *(_amount(key, amount) for amount in (for_each, for_each_pair * 1000, total))])
    return table(["of a death", "for each worker", "for each thousand others that it has", f"{LARGE:,} workers"], rows)


def _amount(key: str, amount: float) -> str:
    if key == "cpu_ms":
        return f"{amount:.2f} ms" if amount < 100 else f"{amount / 1e3:,.0f} s"
    if key == "megabytes":
        return f"{amount * 1e3:.0f} kB" if amount < 1 else f"{amount:,.0f} MB"
    return f"{amount:,.1f}" if amount < 100 else f"{amount:,.0f}"


FIGURES: dict[str, Callable[[], str]] = {
    "control-plane.events": events,
    "control-plane.deaths": deaths,
    "control-plane.idle": idle,
    "control-plane.model": model,
}
