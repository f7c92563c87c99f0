"""Figures of the libraries that took the place of own code."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.tables.raw import results


def _wire(name: str) -> Callable[[], str]:
    def figure() -> str:
        times = results("libraries")["results"]["wire"][name]
        return f"{times['encode'] * 1e6:.1f} and {times['decode'] * 1e6:.1f} us"

    return figure


def _import(name: str) -> Callable[[], str]:
    return lambda: f"{results('libraries')['results']['imports'][name] * 1e3:.0f} ms"


def student() -> str:
    """How much wider an interval gets by the nearest row of a table than it is, at most."""
    rows = results("libraries")["results"]["t"]
    worst = max(rows, key=lambda row: float(row["table"] / row["scipy"]))
    return f"{worst['table'] / worst['scipy'] - 1:.0%} too wide at {worst['seeds']} seeds"


FIGURES: dict[str, Callable[[], str]] = {
    "libraries.msgspec": _wire("msgspec"),
    "libraries.json": _wire("json, by hand"),
    "libraries.student": student,
    "libraries.import.prometheus": _import("prometheus_client"),
    "libraries.import.scipy": _import("scipy.special"),
    "libraries.import.highspy": _import("highspy"),
}
