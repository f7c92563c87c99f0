"""``python -m benchmarks.tables``: put the figures of ``benchmarks/results`` into the documents, or ``--check`` them.

A document marks where a table or a single figure goes::

    <!-- figures memory -->...<!-- end -->

What stands between the marks is made from the raw results, so that a figure in two documents is the same in both.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS
from virtualflow.sim import costs

ROOT = Path(__file__).resolve().parent.parent
MARKED = re.compile(r"<!-- figures ([\w.-]+) -->(\s*)(.*?)(\s*)<!-- end -->", re.DOTALL)
SETTINGS = {"resnet": "ResNet", "gpt": "GPT", "mlp": "MLP"}


def results(section: str) -> dict[str, Any]:
    """The raw results of one section, with the date and the machine."""
    found: dict[str, Any] = json.loads((RESULTS / f"{section}.json").read_text())
    return found


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def measured_on(section: str) -> str:
    """When and on what a section was measured."""
    found = results(section)
    machine = found["machine"]
    transcribed = ", transcribed from the report of that run" if "transcribed" in found else ""
    torch = machine["torch"].split("+")[0]
    return f"{found['date']}, {machine['cores']} cores of an {machine['processor']}, torch {torch}{transcribed}"


def elastic_line(start: str) -> dict[str, Any]:
    """The line of the elastic section whose event begins with *start*."""
    lines = results("elastic")["results"]["lines"]
    found: dict[str, Any] = next(line for line in lines if line["event"].startswith(start))
    return found


def elastic_median(start: str) -> float:
    """Seconds. Some measurements were kept as a median and a range only."""
    line = elastic_line(start)
    return float(line["median"] if "median" in line else statistics.median(line["seconds"]))


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 0.6 else f"{seconds:.1f} s"


def _measurements(line: dict[str, Any]) -> str:
    if "range" in line:
        low, high = line["range"]
        return f"{_milliseconds(low)} to {_milliseconds(high)}, {line['times']} times"
    return ", ".join(_milliseconds(seconds) for seconds in line["seconds"])


def elastic_pauses() -> str:
    rows = []
    for line in results("elastic")["results"]["lines"]:
        limit = "" if line["limit"] is None else f"below {_milliseconds(line['limit'])}"
        rows.append([line["event"], _milliseconds(elastic_median(line["event"])), _measurements(line), limit])
    listening, step = results("elastic")["results"]["listening"]
    rows.append(["checking for a change of membership, per step", f"{listening * 1e6:.1f} us",
                 f"{listening / step:.3%} of a step of {step * 1e3:.1f} ms", "below 1%"])  # fmt: skip
    return table(["event", "median", "measurements", "goal"], rows)


def elastic_rivals() -> str:
    found, rows = results("elastic")["results"]["rivals"], []
    for act, event, ours in (("kill", "kill 1 of 3", "SIGKILL of 1 of 3"), ("grow", "grow 2 to 3", "grow 2 to 3")):
        own, cells = elastic_line(ours)["seconds"], []
        for system in ("torchrun", "torchft"):
            seconds = found[f"{system}, {act}"]
            factor = statistics.median(seconds) / statistics.median(own)
            cells.append(f"{', '.join(f'{lost:.2f}' for lost in seconds)} s (x {factor:.1f})")
        rows.append([event, ", ".join(f"{lost:.3f}" for lost in own) + " s", *cells])
    return table(["time lost", "VirtualFlow", "torchrun", "torchft 0.2.0"], rows)


def simulated_costs() -> str:
    fields = ("boot", "shrink", "grow", "grow_pause", "restart")
    titles = {
        "paper": "the paper's system, with its even mapping",
        "measured": "VirtualFlow on two CPU cores",
        "none": "",
    }
    rows = []
    for name, price in costs.BY_NAME.items():
        label = f"`{name}`: {titles[name]}" if titles[name] else f"`{name}`"
        rows.append([label, *(f"{getattr(price, field):g}" for field in fields)])
    columns = [
        "seconds",
        "start",
        "shrink",
        "grow, in the background",
        "pause after growing",
        "restart from a checkpoint",
    ]
    return table(columns, rows)


def memory() -> str:
    rows = []
    for setting, title in (("mlp", "MLP of 25M parameters"), ("resnet", "ResNet of 0.27M parameters")):
        found = results("memory")["results"][setting]
        base = found["without"]["live_bytes"]
        cells = [title, f"{base / 1e6:.1f} MB"]
        for reduction in ("fast", "exact"):
            extra = _extra_bytes(setting, reduction)
            cells.append(f"+{extra / 1e6:.1f} MB (+{extra / base:.1%})")
        rows.append(cells)
    return table(["peak memory", "plain PyTorch", "`fast`", "`exact`"], rows)


def _extra_bytes(setting: str, reduction: str) -> int:
    """Beyond the same model without virtual nodes; the largest from 2 virtual nodes on."""
    found = results("memory")["results"][setting]
    points = [point for point in found["with"] if point["reduction"] == reduction and point["virtual_nodes"] > 1]
    return max(int(point["live_bytes"]) for point in points) - int(found["without"]["live_bytes"])


def memory_overhead(reduction: str) -> Callable[[], str]:
    def figure() -> str:
        parts = []
        for setting in ("mlp", "resnet"):
            base = results("memory")["results"][setting]["without"]["live_bytes"]
            parts.append(f"+{_extra_bytes(setting, reduction) / base:.1%} ({SETTINGS[setting]})")
        return ", ".join(parts)

    return figure


def scaling() -> str:
    found, rows = results("scaling")["results"], []
    for setting, title in SETTINGS.items():
        for reduction in ("fast", "exact"):
            for name, note in (("against plain", ""), ("against plain, by CPU time", ", CPU time")):
                ratios = found[setting][reduction][name].values()
                cells = [f"{r['median']:.2f} ({r['low']:.2f} to {r['high']:.2f})" for r in ratios]
                rows.append([f"{title}, `{reduction}`{note}", *cells])
    counts = found["resnet"]["fast"]["against plain"]
    return table(["throughput against plain PyTorch", *(f"V={count}" for count in counts)], rows)


def scaling_range(reduction: str, *, one: bool) -> Callable[[], str]:
    """The CPU-time ratios: with one virtual node by model, or the lowest and the highest with several."""

    def figure() -> str:
        by_setting = {
            setting: {int(count): ratio["median"] for count, ratio in found[reduction][name].items()}
            for setting, found in results("scaling")["results"].items()
        }
        if one:
            return ", ".join(f"{by_setting[setting][1]:.2f} ({SETTINGS[setting]})" for setting in SETTINGS)
        several = [value for found in by_setting.values() for count, value in found.items() if count > 1]
        return f"{min(several) - 1:+.1%} to {max(several) - 1:+.1%}"

    name = "against plain, by CPU time"
    return figure


def static_runs(jobs: range) -> Callable[[], str]:
    def figure() -> str:
        found = results("scheduling")["results"]["static runs"]
        pairs = [found[str(job)] for job in jobs]
        rows = [
            ["measured, s", *(f"{real:.0f}" for real, _ in pairs)],
            ["simulated, s", *(f"{seconds:.0f}" for _, seconds in pairs)],
            ["error", *(f"{seconds / real - 1:+.1%}" for real, seconds in pairs)],
        ]
        return table(["job", *(str(job) for job in jobs)], rows)

    return figure


def _change(found: dict[str, Any], name: str) -> str:
    before, after = found["static"][name], found["elastic"][name]
    return f"{after / before - 1:+.1%}" if before else "0"


def _elastic_run(trace: str, price: str, rounding: str) -> dict[str, Any]:
    found: dict[str, Any] = results("scheduling")["results"]["elastic"][f"{trace}, {price} costs, {rounding}"]
    return found


def gains_of_20() -> str:
    rows = [["the paper", "-45.5%", "-47.6%", "-99.3%", "71.1% to 90.6%", ""]]
    for price in ("paper", "measured"):
        for rounding in ("pow2", "any"):
            found = _elastic_run("paper-20-jobs", price, rounding)
            names = ("makespan_seconds", "median_jct_seconds", "median_queueing_seconds")
            used = [found[side]["utilization"] for side in ("static", "elastic")]
            spans = [found[side]["makespan_seconds"] for side in ("static", "elastic")]
            rows.append([f"`--costs {price} --round {rounding}`", *(_change(found, name) for name in names),
                         f"{used[0]:.1%} to {used[1]:.1%}", f"{spans[0]:,.0f} to {spans[1]:,.0f}"])  # fmt: skip
    columns = ["20 jobs, 8 V100", "makespan", "median JCT", "median queueing", "utilisation", "makespan, s"]
    return table(columns, rows)


def gains_of_3() -> str:
    rows = [["the paper", "-38%", "-45%"]]
    for price in ("paper", "measured"):
        for rounding in ("pow2", "any"):
            found = _elastic_run("paper-3-jobs", price, rounding)
            before, after = found["jct_seconds of priority 10"]
            change = f"{after / before - 1:+.1%}"
            rows.append([f"`--costs {price} --round {rounding}`", _change(found, "makespan_seconds"), change])
    return table(["3 jobs, 4 V100", "makespan", "JCT of priority 10"], rows)


def gain(trace: str, name: str) -> Callable[[], str]:
    """With the paper's costs: powers of two, and any number of devices."""

    def figure() -> str:
        found = [_elastic_run(trace, "paper", rounding) for rounding in ("pow2", "any")]
        if name == "priority 10":
            pairs = [each["jct_seconds of priority 10"] for each in found]
            return " / ".join(f"{after / before - 1:+.1%}" for before, after in pairs)
        if name == "utilization":
            elastic = " / ".join(f"{each['elastic'][name]:.1%}" for each in found)
            return f"{found[0]['static'][name]:.1%} to {elastic}"
        return " / ".join(_change(each, name) for each in found)

    return figure


def drawn_traces() -> str:
    rows = []
    for key, intervals in results("scheduling")["results"]["seeds"].items():
        policy, price = key.split(", ")
        seconds = (intervals[name] for name in ("average_jct_seconds", "makespan_seconds", "median_queueing_seconds"))
        used = intervals["utilization"]
        rows.append([f"`{policy}`, `--costs {price}`", *(f"{i['mean']:,.0f} ± {i['half_width']:,.0f}" for i in seconds),
                     f"{used['mean']:.1%} ± {used['half_width']:.1%}"])  # fmt: skip
    return table(["", "average JCT, s", "makespan, s", "median queueing, s", "utilisation"], rows)


FIGURES: dict[str, Callable[[], str]] = {
    "elastic.pauses": elastic_pauses,
    "elastic.rivals": elastic_rivals,
    "elastic.grow": lambda: _milliseconds(elastic_median("grow 2 to 4")),
    "elastic.shrink": lambda: _milliseconds(elastic_median("shrink 4 to 2")),
    "elastic.broadcast": lambda: _milliseconds(elastic_median("bare broadcast")),
    "elastic.kill": lambda: _milliseconds(elastic_median("SIGKILL of 1 of 5")),
    "costs": simulated_costs,
    "memory": memory,
    "memory.fast": memory_overhead("fast"),
    "memory.exact": memory_overhead("exact"),
    "scaling": scaling,
    "scaling.fast": scaling_range("fast", one=False),
    "scaling.exact": scaling_range("exact", one=False),
    "scaling.one.fast": scaling_range("fast", one=True),
    "scaling.one.exact": scaling_range("exact", one=True),
    "scheduling.static.0-9": static_runs(range(10)),
    "scheduling.static.10-19": static_runs(range(10, 20)),
    "scheduling.gains-20": gains_of_20,
    "scheduling.gains-3": gains_of_3,
    "scheduling.drawn": drawn_traces,
    "scheduling.makespan-20": gain("paper-20-jobs", "makespan_seconds"),
    "scheduling.jct-20": gain("paper-20-jobs", "median_jct_seconds"),
    "scheduling.queueing-20": gain("paper-20-jobs", "median_queueing_seconds"),
    "scheduling.utilisation-20": gain("paper-20-jobs", "utilization"),
    "scheduling.makespan-3": gain("paper-3-jobs", "makespan_seconds"),
    "scheduling.jct-3": gain("paper-3-jobs", "priority 10"),
    **{
        f"{section}.measured-on": (lambda section=section: measured_on(section))
        for section in ("elastic", "memory", "scaling", "scheduling")
    },
}


def filled(text: str, where: str = "a document") -> str:
    """*text* with each marked place filled from the results."""

    def replace(match: re.Match[str]) -> str:
        name, before, _, after = match.groups()
        if name not in FIGURES:
            raise SystemExit(f"{where} asks for figures {name!r}; there are {', '.join(FIGURES)}")
        return f"<!-- figures {name} -->{before}{FIGURES[name]()}{after}<!-- end -->"

    return MARKED.sub(replace, text)


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if a document is not current")
    options = parser.parse_args()
    stale = []
    for path in documents():
        text = path.read_text()
        current = filled(text, str(path))
        if current != text:
            stale.append(str(path.relative_to(ROOT)))
            if not options.check:
                path.write_text(current)
    if stale:
        print("not current: " if options.check else "changed: ", ", ".join(stale))
    sys.exit(bool(stale) and options.check)


if __name__ == "__main__":
    main()
