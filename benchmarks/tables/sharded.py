"""Figures of sharded state: memory by the number of devices, and time."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.tables.raw import SETTINGS, ratio, results, table

_MEGABYTE = 1e6


def memory() -> str:
    found = results("sharding")["results"]
    rows = []
    for count, plain in found["peaks"]["none"].items():
        sharded, goal = found["peaks"]["state"][count], found["goals"][count]
        megabytes = [f"{size / _MEGABYTE:.0f} MB" for size in (plain, sharded, goal)]
        rows.append([count, *megabytes, f"{sharded / goal - 1:+.1%}"])
    return table(["devices", "not sharded", "sharded, two copies", "goal", "against the goal"], rows)


def times() -> str:
    found = results("sharding")["results"]["times"]
    rows = []
    for name, sides in found.items():
        setting, _, count = name.partition(" on ")
        ratios = [ratio(sides[kind]["ratio"]) for kind in ("seconds", "processor")]
        rows.append([f"{SETTINGS[setting]}, {count} devices", *ratios])
    return table(["job", "steps a second, against a job that is not sharded", "steps a second of processor time"], rows)


FIGURES: dict[str, Callable[[], str]] = {"sharding": memory, "sharding.times": times}
