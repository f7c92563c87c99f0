"""Figures of simulated clusters: the paper's experiments, Gavel's, and the other schedulers."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean
from typing import Any

from benchmarks.artifacts import POLLUX
from benchmarks.tables.raw import joined, results, table


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


def _trace(rate: int, compat: str | None = None) -> dict[str, Any]:
    """The paper's trace at *rate*, with Gavel's coefficient or, as ``compat``, the paper's."""
    found: list[dict[str, Any]] = results("gavel")["results"]["traces"]
    return next(each for each in found if each["rate"] == rate and each["compat"] == compat)


def _lower(found: dict[str, Any], policy: str) -> float:
    return float(1 - found[policy] / found["las"])


def mixed_traces() -> str:
    papers, rows = {4: "up to 29.2%", 8: "26.4%", 12: "fading"}, []
    for rate, paper in papers.items():
        found = _trace(rate)
        gains = (
            f"{found[name]:,.0f} s, {_lower(found, name):.1%} lower" for name in ("las-mixed", "las-mixed-columns")
        )
        rows.append([str(rate), f"{found['las']:,.0f} s", *gains, paper])
    return table(["jobs/h", "`las`", "`las-mixed`", "`las-mixed-columns`", "the paper"], rows)


def mixed_gain(rate: int, compat: str | None = None) -> Callable[[], str]:
    return lambda: f"-{_lower(_trace(rate, compat), 'las-mixed'):.1%}"


def mixed_gains(compat: str | None = None) -> Callable[[], str]:
    """At 4, 8 and 12 jobs/h."""
    return lambda: joined([f"{100 * _lower(_trace(rate, compat), 'las-mixed'):.1f}" for rate in (4, 8, 12)]) + "%"


def _interval(found: dict[str, float]) -> str:
    return f"{100 * found['mean']:.1f} ± {found['half_width']:.1%}"


def mixed_rates() -> str:
    found = [each for each in results("gavel")["results"]["rates"] if each["rate"] in (1, 2, 4, 6, 8, 10, 12)]
    titles = {"las-mixed": "`las-mixed`, lower by", "las-mixed-columns": "`las-mixed-columns`"}
    rows = [[title, *(_interval(each["lower"][name]) for each in found)] for name, title in titles.items()]
    return table(["jobs/h", *(str(each["rate"]) for each in found)], rows)


def mixed_rate(*rates: int) -> Callable[[], str]:
    def figure() -> str:
        found = {each["rate"]: each["lower"]["las-mixed"] for each in results("gavel")["results"]["rates"]}
        return ", ".join(f"-{_interval(found[rate])}" for rate in rates)

    return figure


def _gavels(rate: int, compat: str | None) -> dict[str, Any]:
    """Gavel's trace at *rate*, by Gavel's rules or, without *compat*, by ours."""
    found: list[dict[str, Any]] = results("gavel")["results"]["gavel"]
    return next(each for each in found if each["rate"] == rate and each["compat"] == compat)


def gavels_jct(compat: str | None) -> Callable[[], str]:
    """At 8 jobs/h."""
    return lambda: f"{_gavels(8, compat)['jct']:,.1f} s"


def gate() -> str:
    """How much longer the average JCT at 8 jobs/h is by Gavel's rules than by ours."""
    return f"{_gavels(8, 'gavel')['jct'] / _gavels(8, None)['jct'] - 1:.0%}"


def luck(trace: str) -> Callable[[], str]:
    """The smallest and the largest average JCT over tiny disturbances."""

    def figure() -> str:
        jcts = results("gavel")["results"]["luck"][trace]
        return f"{min(jcts):,.0f} to {max(jcts):,.0f} s over {len(jcts)} draws"

    return figure


def rounds() -> str:
    rates = sorted({each["rate"] for each in results("gavel")["results"]["gavel"]})
    rows = [
        [title, *(f"{_gavels(rate, compat)['rounds_per_second']:,.0f}" for rate in rates)]
        for title, compat in (("Gavel's rules", "gavel"), ("ours, a program whenever jobs changed", None))
    ]
    return table(["rounds a second, at jobs/h", *map(str, rates)], rows)


def node_sizes() -> str:
    """Sizes free, and fixed; each without communication, and with it."""
    found, settings = results("node-sizes")["results"]["found"], ("free", "fixed")
    by = {(each["rate"], each["sizes"]): each for each in found}
    columns = ["jobs/h", *(f"{sizes}{more}" for sizes in settings for more in ("", ", communication"))]
    rows = []
    for rate in sorted({rate for rate, _ in by}):
        each = [by[rate, column] for column in columns[1:]]
        rows.append([f"{rate}, the paper's trace", *(f"{one['lower']:.1%}" for one in each)])
        rows.append([f"{rate}, 100 traces", *(_interval(one["drawn"]) for one in each)])
    return table(columns, rows)


def learnt() -> str:
    found = results("learning")["results"]
    sides = {"live": {name: each["jct"] for name, each in found["live"].items()}, "simulated": found["simulated"]}
    rows = [
        [side, *(f"{jcts[name]:.1f} s" for name in ("las", "las-mixed")), f"{1 - jcts['las-mixed'] / jcts['las']:.1%}"]
        for side, jcts in sides.items()
    ]
    return table(["average JCT", "`las`", "`las-mixed`", "lower by"], rows)


def given_back() -> str:
    return str(results("learning")["results"]["live"]["las-mixed"]["given_back"])


def overran() -> str:
    """Waves that took longer than they were to take, in all live jobs."""
    return str(sum(each["overran_waves"] for each in results("learning")["results"]["live"].values()))


def live_start() -> str:
    return f"{results('learning')['results']['start_seconds']:.0f} s"


def large_decisions() -> str:
    found = results("scale")["results"]["decisions"]
    names = list(dict.fromkeys(key.partition(": ")[2] for key in found))
    running = list(dict.fromkeys(key.partition(": ")[0] for key in found))
    rows = [[name, *(f"{found[f'{count}: {name}']['median_ms']:.1f} ms" for count in running)] for name in names]
    return table(["", *(f"{int(count):,} jobs run" for count in running)], rows)


def philly_under_las() -> str:
    return f"{results('scale')['results']['philly']['cpu_seconds']:.0f} s"


def tick() -> str:
    return f"{results('scale')['results']['tick']['median_ms']:.0f} ms"


def longest_tick() -> str:
    return f"{results('scale')['results']['tick']['max_ms']:.0f} ms"


def programs() -> str:
    found = results("gavel")["results"]["programs"]
    first, *others = (f"{each['jobs']:,}" for each in found)
    rows = [
        ["the LAS program, ours", *(f"{each['milliseconds']:.1f} ms" for each in found)],
        ["cvxpy with HiGHS", *(f"{each['cvxpy_milliseconds']:.1f} ms" for each in found)],
    ]
    return table(["", f"{first} jobs", *others], rows)


def solvers() -> str:
    found = results("solvers")["results"]
    rows = [
        [f"{rules}: {solver}", *(f"{speed:,}" for speed in speeds)]
        for rules, by_solver in found["rounds_per_second"].items()
        for solver, speeds in by_solver.items()
    ]
    return table(["rounds a second, at jobs/h", *(str(rate) for rate in found["rates"])], rows)


def largest_rho() -> str:
    means = {name: mean(rhos) for name, rhos in results("policies")["results"]["largest rho"].items()}
    cells = [f"{rho:.3g}" if rho > 10 else f"{rho:.2f}" for rho in means.values()]
    return table(["", *means], [["largest rho", *cells]])


def worst_rho(contender: str) -> Callable[[], str]:
    """Of all traces."""
    return lambda: f"{max(results('policies')['results']['largest rho'][contender]):.2f}"


def busy_sums() -> str:
    """Device time of two jobs on one device, in all: the median over pairs, and the middle 90% of them."""

    def text(kind: str, sums: list[float]) -> str:
        low, median, high = (sums[round(part * (len(sums) - 1))] for part in (0.05, 0.5, 0.95))
        return f"{median:.2f} on a {kind.upper()} (90% of {len(sums)} pairs: {low:.2f} to {high:.2f})"

    return joined([text(kind, sums) for kind, sums in results("policies")["results"]["busy"].items()])


def same_traces(title: str) -> Callable[[], str]:
    """Every policy on one trace: *title* names it in the results."""

    def figure() -> str:
        rows = []
        for name, found in results("policies")["results"]["same traces"][title].items():
            seconds = (f"{found[key]:,.0f}" for key in ("average", "median", "tail", "makespan"))
            others = f"{found['fairness']:.2f}", f"{found['restarts']:,}", f"{found['device_hours']:,.0f}"
            rows.append([f"`{name}`", *seconds, *others, found["changes"]])
        seconds = ["average JCT, s", "median", "99th", "makespan, s"]
        return table([title, *seconds, "fairness", "restarts", "device-hours", "changes what is trained?"], rows)

    return figure


def against_pollux() -> str:
    """Average JCT on Pollux' workloads, here and as its own simulator has it."""
    found, rows = results("policies")["results"]["artifacts"]["pollux"], []
    for name, jcts in found.items():
        theirs = dict(enumerate(POLLUX.get(name, ()), 1))
        cells = [f"{jcts['6']:,.0f}", f"{theirs[6]:,.0f}" if theirs else ""]
        cells += [f"{mean(jcts.values()):,.0f}" if theirs else ""]
        cells += [f"{mean(theirs[int(number)] for number in jcts):,.0f}" if theirs else ""]
        off = [jct / theirs[int(number)] - 1 for number, jct in jcts.items()] if theirs else []
        cells += [f"{mean(off):+.0%} ({min(off):+.0%} to {max(off):+.0%})" if off else ""]
        rows.append([f"`{name}`", *cells])
    count = len(found["pollux"])
    return table(["", "workload 6", "Pollux' simulator", f"mean of {count}", "Pollux' simulator", "off by"], rows)


def against_sia() -> str:
    found = results("policies")["results"]["artifacts"]["sia"]
    return joined([f"{mean(jcts):.2f} h under `{name}`" for name, jcts in found.items()])


FIGURES: dict[str, Callable[[], str]] = {
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
    "gavel.traces": mixed_traces,
    "scale.decisions": large_decisions,
    "scale.philly": philly_under_las,
    "scale.tick": tick,
    "scale.tick.most": longest_tick,
    "node-sizes": node_sizes,
    "learning": learnt,
    "learning.given-back": given_back,
    "learning.overran": overran,
    "learning.start": live_start,
    "gavel.4": mixed_gain(4),
    "gavel.8": mixed_gain(8),
    "gavel.12": mixed_gain(12),
    "gavel.paper.4": mixed_gain(4, "paper"),
    "gavel.paper.8": mixed_gain(8, "paper"),
    "gavel.paper.12": mixed_gain(12, "paper"),
    "gavel.paper": mixed_gains("paper"),
    "gavel.rates": mixed_rates,
    "gavel.rate-8": mixed_rate(8),
    "gavel.other-rates": mixed_rate(1, 4, 12),
    "gavel.jct": gavels_jct("gavel"),
    "gavel.gate": gate,
    "gavel.jct.ours": gavels_jct(None),
    "gavel.luck": luck("Gavel's trace and rules, 8 jobs/h"),
    "gavel.luck.paper": luck("the paper's trace, 8 jobs/h"),
    "gavel.rounds": rounds,
    "gavel.programs": programs,
    "solvers": solvers,
    "policies.rho": largest_rho,
    "policies.rho.most": worst_rho("`themis`, f = 0.8, 20 min"),
    "policies.rho.most-f-0": worst_rho("f = 0"),
    "policies.busy": busy_sums,
    "policies.same-traces.160": same_traces("160 jobs, 64 T4"),
    "policies.same-traces.20": same_traces("20 jobs, 8 V100"),
    "policies.same-traces.100": same_traces("100 jobs, 4 V100 + 8 P100 + 16 K80"),
    "policies.pollux": against_pollux,
    "policies.sia": against_sia,
}
