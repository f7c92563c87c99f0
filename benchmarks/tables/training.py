"""Figures of one job: speed, memory, scaling, loading, and what a change of membership costs."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.tables.raw import SETTINGS, ratio, results, table
from virtualflow.sim import costs

REDUCTIONS = ("fast", "exact")


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
        for reduction in REDUCTIONS:
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


def sentinel() -> str:
    found, rows = results("sentinel")["results"], []
    for setting, title in SETTINGS.items():
        costs_more = (f"{found[setting][key] - 1:+.1%}" for key in ("processor time", "step time"))
        rows.append([title, *costs_more, _others(found[setting])])
    return table(["a sentinel at 1/16 costs", "processor time", "step time", "kept busy by others"], rows)


def sentinel_chance() -> str:
    """By arithmetic: how likely a sentinel sees one of so many virtual nodes that are wrong, now and then."""
    counts = (1, 10, 100, 1000)
    rates = {"1": 1.0, "1/4": 1 / 4, "1/16": 1 / 16, "1/64": 1 / 64}
    rows = [[f"rate {name}", *(f"{1 - (1 - rate) ** count:.4g}" for count in counts)] for name, rate in rates.items()]
    return table(["chance of detection by wrong virtual nodes", *map(str, counts)], rows)


def scaling() -> str:
    found, rows = results("scaling")["results"], []
    for setting, title in SETTINGS.items():
        for reduction in REDUCTIONS:
            for name, note in (("against plain", ""), ("against plain, by CPU time", ", CPU time")):
                ratios = found[setting][reduction][name].values()
                cells = [*(ratio(each) for each in ratios), _others(found[setting][reduction])]
                rows.append([f"{title}, `{reduction}`{note}", *cells])
    counts = (f"V={count}" for count in found["resnet"]["fast"]["against plain"])
    return table(["throughput against plain PyTorch", *counts, "kept busy by others"], rows)


def _others(found: dict[str, Any]) -> str:
    """How many cores other processes used meanwhile."""
    disturbance: str = found["disturbance"]
    return disturbance.removeprefix("other processes kept ").removesuffix(" busy")


def scaling_range(reduction: str) -> Callable[[], str]:
    """The lowest and the highest CPU-time ratio with several virtual nodes."""

    def figure() -> str:
        several = [
            ratio["median"]
            for found in results("scaling")["results"].values()
            for count, ratio in found[reduction]["against plain, by CPU time"].items()
            if int(count) > 1
        ]
        return f"{min(several) - 1:+.1%} to {max(several) - 1:+.1%}"

    return figure


def overhead() -> str:
    rows = []
    for setting, title in SETTINGS.items():
        for size, found in results("overhead")["results"][setting].items():
            ratios = (ratio(found[name]) for name in (*REDUCTIONS, *(f"{each}, by CPU time" for each in REDUCTIONS)))
            rows.append([f"{title}, batch {size}", *ratios, _others(found)])
    columns = ["`fast`", "`exact`", "`fast`, CPU time", "`exact`, CPU time", "kept busy by others"]
    return table(["one virtual node against plain PyTorch", *columns], rows)


def overhead_range(reduction: str) -> Callable[[], str]:
    """By model, the lowest and the highest CPU-time ratio over the batch sizes."""

    def figure() -> str:
        parts = []
        for setting, title in SETTINGS.items():
            by_size = results("overhead")["results"][setting].values()
            medians = [found[f"{reduction}, by CPU time"]["median"] for found in by_size]
            parts.append(f"{min(medians):.1%} to {max(medians):.1%} ({title})")
        return ", ".join(parts)

    return figure


CONTENDERS = {  # as the tables name them; a result may lack one
    "fast": "`fast`",
    "exact": "`exact`",
    "accelerate": "accelerate",
    "fabric": "Lightning Fabric",
    "baseline, memory kept": "the baseline, memory kept",
    "baseline again": "the baseline against itself",
}


def speed(devices: int) -> Callable[[], str]:
    titles = {
        1: "one device, against a hand-written accumulation loop",
        2: "two devices, against DistributedDataParallel",
    }

    def figure() -> str:
        found, rows = results(f"speed-{devices}")["results"], []
        for contender, title in CONTENDERS.items():
            lines = [line for s in SETTINGS for line in found[s]["lines"] if line["contender"] == contender]
            if lines:
                goals = {line["setting"]: line["goal"] for line in lines}
                rows.append([title, *(ratio(line["throughput"]) for line in lines), _goals(goals)])
        return table([titles[devices], *SETTINGS.values(), "goal"], rows)

    return figure


def _goals(by_setting: dict[str, float | None]) -> str:
    """One number if the goals are equal; else the first one's, and those that differ by name."""
    first, *_ = by_setting.values()
    if first is None:
        return ""
    others = [f"{SETTINGS[name]} {goal:g}" for name, goal in by_setting.items() if goal != first]
    return ", ".join([f"{first:g}", *others])


def loading() -> str:
    rows = []
    for key, found in results("loading")["results"].items():
        data, cores = key.removesuffix(" core(s)").rsplit(", ", 1)
        ratios = found["against the training thread"]
        cells = [ratio(ratios[way]) for way in ("automatic", "one loader process")]
        rows.append([data, cores, *cells, f"{found['others']:.2f}"])
    return table(["data", "cores allowed", "automatic (the default)", "`loader_workers=1`", "others"], rows)


def streaming() -> str:
    found = results("streaming")["results"]
    rows = [
        [name, f"{found['bytes'][way] / found['bytes of the files']:.3f}", cell]
        for name, way, cell in (
            ("a DataLoader over lines", "DataLoader", "1"),
            (
                "`vf.jsonl` in a Trainer",
                "vf.jsonl",
                ratio(found["rows a second of processor time, against the loader"]),
            ),
        )
    ]
    return table(["read by", "bytes read, against the files' own", "rows per second of processor time"], rows)


def launches() -> str:
    rows, by_setting = [], {}
    for row in results("launches")["results"]["rows"]:
        plain = by_setting.setdefault(row["setting"], row)
        rows.append([
            SETTINGS[row["setting"]], row["contender"], f"{row['launches']:,}",
            f"{row['launches'] / plain['launches']:.2f}", str(row["waits"]), str(row["copies"]),
            f"{row['bytes_to_device'] / 1e3:,.1f}", f"{row['bytes_to_host'] / 1e3:,.1f}",
            f"{row['bytes_touched'] / plain['bytes_touched']:.2f}",
            f"{row['bytes_reduced']['cuda'] / 1e6:,.2f}", f"{row['bytes_reduced']['cpu'] / 1e3:,.1f}",
        ])  # fmt: skip
    columns = [
        "model", "loop", "launches", "against plain", "waits", "copies", "kB to the device", "kB to the host",
        "bytes touched, against plain", "MB reduced between devices", "kB between hosts",
    ]  # fmt: skip
    return table(columns, rows)


def certificate() -> str:
    rows = []
    for found in results("certificate")["results"]:
        parts = [found[name] for name in ("record", "ids", "norm")]
        rows.append([SETTINGS[found["setting"]], f"{found['step'] * 1e3:.0f} ms",
                     *(f"{seconds * 1e3:.2f} ms" for seconds in parts), f"{sum(parts) / found['step']:.2%}",
                     f"{found['epoch_digest'] * 1e3:.0f} ms"])  # fmt: skip
    columns = ["", "a step", "the event", "the ids", "the norm", "together, of a step (goal: below 1%)"]
    return table([*columns, "digest of the model, once an epoch"], rows)


FIGURES: dict[str, Callable[[], str]] = {
    "certificate": certificate,
    "launches": launches,
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
    "scaling.fast": scaling_range("fast"),
    "scaling.exact": scaling_range("exact"),
    "sentinel": sentinel,
    "sentinel.chance": sentinel_chance,
    "overhead": overhead,
    "overhead.fast": overhead_range("fast"),
    "overhead.exact": overhead_range("exact"),
    "speed-1": speed(1),
    "speed-2": speed(2),
    "loading": loading,
    "streaming": streaming,
}
