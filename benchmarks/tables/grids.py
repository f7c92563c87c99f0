"""Figures of the solver of grids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.tables.raw import results, table


def _found() -> dict[str, Any]:
    found: dict[str, Any] = results("grids")["results"]
    return found


def times() -> str:
    rows = [
        [name, each["shape"], f"{each['cpu_seconds']:.2f} s", f"{each['seconds']:.2f} s"]
        for name, each in _found()["large"].items()
    ]
    return table(["256 devices, 64 stages", "the answer", "processor time", "clock"], rows)


def gaps() -> str:
    rows = [
        [_size(each), str(each["instances"]), each["proven"], each["best"], f"{each['worst']:.0%}"]
        for each in _found()["gaps"]
    ]
    columns = [
        "stages x virtual nodes, devices",
        "questions",
        "every grid compared",
        "a candidate is best",
        "worst candidate",
    ]
    return table(columns, rows)


def beyond() -> str:
    rows = [
        [_size(each), each["costs"], *(_percent(each, name) for name in ("candidate", "over", "gain"))]
        for each in _found()["beyond"]
    ]
    columns = [
        "stages x virtual nodes, devices",
        "stages are",
        "the best candidate is slower",
        "the answer is above the bound",
        "a walk four times as long gains",
    ]
    return table(columns, rows)


def forecasts() -> str:
    rows = [
        [name, f"{each['forecast']:.3f} s", f"{min(each['medians']):.3f} s", f"{each['ratio']:.2f}"]
        for name, each in _found()["forecasts"]["grids"].items()
    ]
    return table(["grid", "forecast", "measured", "measured / forecast"], rows)


def load() -> str:
    return f"{_found()['forecasts']['load']:.0f}"


def _size(each: dict[str, Any]) -> str:
    stages, nodes, devices = each["size"]
    return f"{stages} x {nodes}, {devices}"


def _percent(each: dict[str, Any], name: str) -> str:
    """The median and the most."""
    return f"{each[name]:.0%} (at most {each['most_' + name]:.0%})"


FIGURES: dict[str, Callable[[], str]] = {
    "grids.times": times,
    "grids.gaps": gaps,
    "grids.beyond": beyond,
    "grids.forecasts": forecasts,
    "grids.load": load,
}
