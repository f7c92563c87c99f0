"""Figures of a live cluster: a manager, its answers and decisions, and the paper's traces under it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.tables.raw import ratio, results, table

LINES = {  # of the table of measured against predicted; a second figure goes into parentheses
    "makespan": ("makespan",),
    "average JCT (median)": ("average JCT", "median JCT"),
    "JCT of the highest priority": ("JCT of priority 10",),
    "average queueing (median)": ("average queueing", "median queueing"),
    "utilisation": ("utilisation",),
}
WITH_STARTS = "simulated with the run's starts"
TRACES = {"paper-3-jobs": "3 jobs", "paper-20-jobs": "20 jobs"}


def _times(found: Sequence[float] | dict[str, float], name: str) -> float | None:
    """The median or the longest of sorted times; results that were transcribed have only some of them."""
    if isinstance(found, dict):
        return found.get(name)
    places = {"median": len(found) // 2, "99th percentile": min(len(found) - 1, int(0.99 * len(found)))}
    return found[places.get(name, -1)]


def _figure(facts: dict[str, Any], name: str) -> float | None:
    found: float | None = facts.get("figures", {}).get(name)
    return found


def _text(name: str, value: float) -> str:
    return f"{value:.1%}" if name == "utilisation" else f"{value:.1f} s"


def _ratio_to(facts: dict[str, Any], name: str, measured: float) -> str | None:
    """Measured over predicted; none where both are about nothing."""
    if name in facts.get("ratios", {}):
        return f"{facts['ratios'][name]:.2f}"
    predicted = _figure(facts, name)
    if not predicted or (name != "utilisation" and max(measured, predicted) <= 1.0):
        return None
    return f"{measured / predicted:.2f}"


def _with_second(parts: Sequence[str | None]) -> str:
    first, *others = [part or "" for part in parts]
    return first + "".join(f" ({other.removesuffix(' s')})" for other in others if other)


def real_against_predicted() -> str:
    rows = []
    for trace, title in TRACES.items():
        found = results("cluster")["results"][trace]
        for policy in ("wfs", "priority"):
            real, guess, told = (found[kind][policy] for kind in ("measured", "simulated", WITH_STARTS))
            for line, names in LINES.items():
                known = [name for name in names if _figure(real, name) is not None]
                if (trace == "paper-20-jobs" and line == "JCT of the highest priority") or not known:
                    continue
                measured = [(name, float(real["figures"][name])) for name in known]
                guesses = [_figure(guess, name) for name, _ in measured]
                label = f"{title}, `{policy}`: {line}" if line == "makespan" else line
                rows.append([
                    label,
                    _with_second([_text(name, value) for name, value in measured]),
                    _with_second([None if each is None else _text(name, each)
                                  for (name, _), each in zip(measured, guesses, strict=True)]),
                    _with_second([_ratio_to(guess, name, value) for name, value in measured]),
                    _with_second([_ratio_to(told, name, value) for name, value in measured]),
                ])  # fmt: skip
    return table(["", "measured", "predicted", "measured / predicted", "with the run's own starts"], rows)


def gain(trace: str, name: str) -> Callable[[], str]:
    """WFS against static priority: measured, and predicted for that."""

    def figure() -> str:
        found, cells = results("cluster")["results"][trace], []
        for kind in ("measured", "simulated"):
            before, after = (float(found[kind][policy]["figures"][name]) for policy in ("priority", "wfs"))
            change = f"{before:.1%} to {after:.1%}" if name == "utilisation" else f"{after / before - 1:+.1%}"
            cells.append(change)
        return f"{cells[0]}; predicted {cells[1]}"

    return figure


def overhead() -> str:
    return ratio(results("cluster")["results"]["overhead"]["ratio"])


def decisions(devices: int) -> Callable[[], str]:
    def figure() -> str:
        parts = []
        for policy in ("wfs", "priority", "srtf"):
            found = results("cluster")["results"]["decision"][f"{policy}, {devices}"]
            median, longest = _times(found, "median"), _times(found, "longest")
            assert longest is not None
            middle = "" if median is None else f"{median * 1e3:.1f} ms in the median, "
            parts.append(f"`{policy}` {middle}{longest * 1e3:.1f} ms" + (" at most" if middle else ""))
        return ", ".join(parts)

    return figure


CALIBRATED = {  # what a job alone took, if the results have it: transcribed ones do not
    "start": "start, from the submit to the first step on 4 devices",
    "end": "end, from the last step until the manager knows",
    "grow": "growing, from the request to the first step on all",
    "grow_pause": "the pause of training when it grows",
    "shrink_pause": "the pause of training when it shrinks",
}


def starts() -> str:
    """The mean time from a job's grant to its first step, with 20 jobs."""
    found = results("cluster")["results"]["paper-20-jobs"]["starts"]
    return " and ".join(f"{found[policy]:.1f} s under `{policy}`" for policy in ("priority", "wfs"))


def manager() -> str:
    """What a manager costs a job, and what it takes to decide, start, resize and end."""
    found = results("cluster")["results"]
    share = statistics.median(found["overhead"]["shares"])
    rows = [
        [
            "throughput on 2 devices under a manager, against the same `vf run`, in turn",
            overhead(),
            "0.98",
        ],
        ["CPU use of the manager meanwhile, with a client that waits for the job", f"{share:.1%} of a core", ""],
        ["a decision with 1,000 jobs, 16 devices (CPU time)", decisions(16)(), "below 50 ms"],
        ["the same with 2,000 devices, where nearly all jobs run", decisions(2000)(), "below 50 ms"],
    ]
    for name, seconds in found.get("calibration", {}).items():
        if name in CALIBRATED:
            rows.append([CALIBRATED[name], f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1e3:.0f} ms", ""])
    return table(["", "measured", "goal"], rows)


def answers() -> str:
    found, rows = results("cluster")["results"]["requests"], []
    who = {
        "1 client(s), without a pause": "one client",
        "50 client(s), one request a second each": "50 clients, one request a second each",
        "50 client(s), without a pause": "50 clients, without a pause",
    }
    for key, title in who.items():
        cells = []
        for what in ("list of all jobs", "one job", "submit"):
            times = [_times(found[f"{what}, {key}"], name) for name in ("median", "99th percentile")]
            cells.append(", ".join(f"{seconds * 1e3:,.0f}" for seconds in times if seconds is not None))
        rows.append([title, *cells])
    return table(["median, 99th percentile in ms", "the list of all jobs (0.5 MB)", "one job", "submit"], rows)


def philly() -> str:
    found, rows = results("decisions")["results"]["philly"], []
    for policy in ("wfs", "priority"):
        many, few = found[f"{policy}, 2500"], found[f"{policy}, 600"]
        cells = [f"{each['cpu_seconds']:.1f} s, {each['cpu_seconds'] / each['events'] * 1e6:.0f} us an event"
                 for each in (many, few)]  # fmt: skip
        rows.append([f"`{policy}`", *cells, f"{few['metrics']['average_jct_seconds']:,.0f} s"])
    return table(["", "2,500 devices (no job waits)", "600 devices", "average JCT on 600"], rows)


def cost_of_an_event(by: str, title: str) -> Callable[[], str]:
    def figure() -> str:
        found = results("decisions")["results"][by]
        counts = next(iter(found.values()))
        rows = []
        for name, costs in found.items():
            policy, *crowded = name.split(", ")
            label = ", ".join([f"`{policy}`", *crowded])
            rows.append([label, *(f"{seconds * 1e6:,.0f}" for seconds in costs.values())])
        return table([title, *(f"{int(count):,}" for count in counts)], rows)

    return figure


FIGURES: dict[str, Callable[[], str]] = {
    "cluster.against-predicted": real_against_predicted,
    "cluster.makespan-20": gain("paper-20-jobs", "makespan"),
    "cluster.jct-20": gain("paper-20-jobs", "median JCT"),
    "cluster.queueing-20": gain("paper-20-jobs", "median queueing"),
    "cluster.utilisation-20": gain("paper-20-jobs", "utilisation"),
    "cluster.makespan-3": gain("paper-3-jobs", "makespan"),
    "cluster.jct-3": gain("paper-3-jobs", "JCT of priority 10"),
    "cluster.manager": manager,
    "cluster.starts": starts,
    "cluster.answers": answers,
    "decisions.philly": philly,
    "decisions.queue": cost_of_an_event("by queue", "waiting jobs, 64 devices"),
    "decisions.devices": cost_of_an_event("by devices", "devices, a job on every 4"),
}
