"""Tables of the control plane and of large clusters, with a model of what a larger job would cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.tables.raw import results, table

LARGE = 10_000  # devices of the job that the model is for
LOSSES = ("a death", "a twelfth of them dies at once")
EVENTS = (*LOSSES, "half of them leave", "as many join")
COSTS = {"cpu_ms": "processor time", "megabytes": "traffic"}
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
    """A death in the two largest jobs, and in a large one if the cost grows with the square of the workers."""
    (few, small), (many, large) = list(_jobs().items())[-2:]
    rows = []
    for key, name in COSTS.items():
        costs = small["a death"][key], large["a death"][key]
        cells = [_amount(key, cost) for cost in (*costs, costs[1] * (LARGE / many) ** 2)]
        rows.append([name, *cells[:2], f"{costs[1] / costs[0]:.0f}, of {(many / few) ** 2:.0f}", cells[2]])
    return table(["of a death", f"{few:,} workers", f"{many:,}", "factor, of the square's", f"{LARGE:,}: model"], rows)


def _amount(key: str, amount: float) -> str:
    if key == "cpu_ms":
        return f"{amount / 1e3:,.2f} s" if amount < 1e4 else f"{amount / 1e3:,.0f} s"
    return f"{amount:,.0f} MB"


FIGURES: dict[str, Callable[[], str]] = {
    "control-plane.events": events,
    "control-plane.deaths": deaths,
    "control-plane.idle": idle,
    "control-plane.model": model,
}
