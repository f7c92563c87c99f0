"""Measures a user's own script on this device: how long virtual nodes of each size take, or what communication costs.

The script runs as it is up to its first batch; then steps are made for the stopwatch instead of for the model.
"""

from __future__ import annotations

import contextlib
import json
import math
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from virtualflow.core.membership import JobContext
from virtualflow.core.profile import LARGEST, MEMORY, PACE, TIME, Point
from virtualflow.core.sharding import GlobalBatch
from virtualflow.core.wording import counted
from virtualflow.errors import ConfigError, DeviceMemoryError
from virtualflow.train import run_facts
from virtualflow.train.data import Feed, Request, Shard
from virtualflow.train.instruments import Engine
from virtualflow.train.step import StepResult

RESULT, PROGRESS = "profile.json", "profile.jsonl"
WARM_UP_STEPS, FEWEST_STEPS, MOST_STEPS = 2, 6, 40
TIGHT = 0.01  # of the estimate: half of the interval that is good enough
SETTLING_STEPS, COMMUNICATION_STEPS = 5, 40
TOO_SLOW = (
    "too many waves took longer here than on the device that they emulate, or were replayed: what would be measured is "
    "void. Use a smaller model, a larger --time-scale or an idle machine."
)
PAUSE_SECONDS = 0.1  # between steps that only wait for others to join


def measure(engine: Engine, settle: Callable[[], None], feed: Feed, examples: int, wanted: Mapping[str, Any]) -> None:
    """Measure what *wanted* names on *examples* that *feed* loads, and leave the result in the job's folder.

    *settle* does what is due between two steps.
    """
    if wanted["what"] == "link":
        raise ConfigError("the script was cut into stages when its stages were measured, and is not any more")
    job = engine.peers.membership.job
    for group in (group for optimizer in engine.live.optimizers for group in optimizer.param_groups):
        if "lr" in group:
            group["lr"] = 0 * group["lr"]  # a profile's many steps, with batches of other sizes, must not end in NaN
    if wanted["what"] == "node sizes":
        ready = _Ahead(feed) if feed.fetches_ahead else _Timed(feed)
        result = _node_sizes(job, wanted, _Stopwatch(engine, ready, examples), engine.virtual_nodes)
    else:
        result = _communication(job, wanted, _Stopwatch(engine, _Synthetic(feed), examples), engine, settle)
    parameters = list(engine.live.parts.model.parameters())
    device = parameters[0].device if parameters else torch.device("cpu")
    facts = run_facts.environment(device) | {"parameters": sum(parameter.numel() for parameter in parameters)}
    (job.folder / RESULT).write_text(json.dumps(result | {"facts": facts}))


@dataclass(frozen=True, slots=True)
class _StepTimes:
    """One step by the stopwatch: seconds of the whole, of this device's waves, and of loading."""

    step_seconds: float
    wave_seconds: float
    loading_seconds: float
    is_good: bool  # made at the first attempt, and no wave overran


class _Stopwatch:
    """Makes steps on any slices of the data."""

    def __init__(self, engine: Engine, feed: _Ready, examples: int) -> None:
        self._runner = engine.first_runner
        self._pace = engine.pace
        self._feed = feed
        self._examples = examples
        self.device = next(
            (parameter.device for parameter in engine.live.parts.model.parameters()), torch.device("cpu")
        )
        # A GradScaler copes with gradients that are not finite.
        self._scaled = engine.live.grad_scaler is not None

    def step(self, sizes: tuple[int, ...], number: int) -> _StepTimes:
        """One step with virtual nodes of these sizes."""
        order = (np.arange(sum(sizes), dtype=np.int64) + number) % self._examples
        batch = GlobalBatch(0, number, tuple(np.split(order, np.cumsum(sizes)[:-1])))
        self._feed.prepare(batch)
        started = time.perf_counter()
        result = self._runner.run(batch, number, self._feed)
        seconds = time.perf_counter() - started
        self._check(result, sum(sizes))
        is_good = result.attempts == 1 and not self._pace.overran
        return _StepTimes(seconds, self._pace.wave_seconds, self._feed.loading_seconds, is_good)

    def _check(self, result: StepResult, examples: int) -> None:
        norm = result.gradient_norm if not self._scaled else None
        if math.isfinite(result.loss) and (norm is None or math.isfinite(norm)):
            return
        raise ConfigError(
            f"a step on {counted(examples, 'example')} has the loss {result.loss} and the gradient norm {norm}: "
            f"numbers that "
            "are not finite take other times, so what would be measured is void. Mend the model or its data first."
        )


class _Ready(Feed):
    """A feed for the stopwatch, which times the loading."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self.loading_seconds = 0.0  # of the current step

    def prepare(self, batch: GlobalBatch) -> None:
        """Just before a step with *batch*."""
        self.loading_seconds = 0.0

    def _load(self, request: Request) -> Shard:
        started = time.perf_counter()
        shard = self._feed.take(request)
        self.loading_seconds += time.perf_counter() - started
        return shard


class _Timed(_Ready):
    """Loads as the script does where nothing is fetched ahead: in the middle of a wave."""

    def take(self, request: Request) -> Shard:
        return self._load(request)


class _Ahead(_Ready):
    """Loads before the step, as loader processes do: loading is no part of its waves."""

    def __init__(self, feed: Feed) -> None:
        super().__init__(feed)
        self._loaded: dict[int, Shard] = {}  # for the current step, by virtual node

    def prepare(self, batch: GlobalBatch) -> None:
        super().prepare(batch)
        requests = [Request(batch.epoch, batch.step, node, 0, shard) for node, shard in enumerate(batch.shards)]
        self._loaded = {request.virtual_node: self._load(request) for request in requests if len(request.indices)}

    def take(self, request: Request) -> Shard:
        return self._loaded[request.virtual_node]


class _Synthetic(_Ready):
    """Loads a virtual node's shard once and hands it out from then on: loading is no part of the steps."""

    def __init__(self, feed: Feed) -> None:
        super().__init__(feed)
        self._kept: dict[int, Shard] = {}

    def take(self, request: Request) -> Shard:
        if request.virtual_node not in self._kept:
            self._kept[request.virtual_node] = self._feed.take(request)
        return self._kept[request.virtual_node]


def _node_sizes(
    job: JobContext, wanted: Mapping[str, Any], stopwatch: _Stopwatch, virtual_nodes: int
) -> dict[str, Any]:
    points: list[Point] = []
    updates: list[float] = []
    out_of_memory, ended_by = None, LARGEST
    deadline = time.monotonic() + wanted["seconds"]
    with limited(wanted.get("memory_limit")):
        for size in measured_sizes(wanted["largest"]):
            _reset_peak(stopwatch.device)
            try:
                measured = _point(stopwatch, size, virtual_nodes)
            except DeviceMemoryError as error:
                out_of_memory, ended_by = str(error).split(": ", 1)[-1], MEMORY
                break
            if measured is None:
                ended_by = PACE
                break
            point, update = measured
            points.append(point)
            updates.append(update)
            report(job, asdict(point))
            if size < wanted["largest"] and time.monotonic() + 4 * MOST_STEPS * point.seconds > deadline:
                ended_by = TIME  # the next size would take too long
                break
    if not points and out_of_memory is None:
        raise ConfigError(TOO_SLOW)
    if not points:
        raise ConfigError(f"not even one example fits into the memory of this device: {out_of_memory}")
    return {
        "points": [asdict(point) for point in points],
        "update_seconds": statistics.median(updates),
        "ended_by": ended_by,
    }


def _point(stopwatch: _Stopwatch, size: int, virtual_nodes: int) -> tuple[Point, float] | None:
    """A node size, and the rest of a step; None if too few steps are usable."""
    sizes = (size,) + (0,) * (virtual_nodes - 1)
    for number in range(WARM_UP_STEPS):
        stopwatch.step(sizes, number)
    steps: list[_StepTimes] = []
    waves: list[float] = []
    for number in range(MOST_STEPS):
        timed = stopwatch.step(sizes, WARM_UP_STEPS + number)
        if timed.is_good:
            steps.append(timed)
            waves.append(timed.wave_seconds)
            low, high = interval(waves)
            if len(waves) >= FEWEST_STEPS and high - low < 2 * TIGHT * statistics.median(waves):
                break
        elif not steps and number >= 2 * FEWEST_STEPS:
            break
    if len(steps) < FEWEST_STEPS:
        return None
    low, high = interval(waves)
    loading = statistics.median(timed.loading_seconds for timed in steps)
    rest = statistics.median(timed.step_seconds - timed.wave_seconds for timed in steps)
    return Point(size, statistics.median(waves), low, high, _peak_bytes(stopwatch.device), loading), rest


def _communication(
    job: JobContext, wanted: Mapping[str, Any], stopwatch: _Stopwatch, engine: Engine, settle: Callable[[], None]
) -> dict[str, Any]:
    """The step time at node size 1, on as many devices as are wanted and then on ever fewer, one at last.

    Every worker, from the start or from elsewhere, makes this same step again and again until it is let go.
    """
    peers, virtual_nodes = engine.peers, engine.virtual_nodes
    membership = peers.membership

    def step() -> _StepTimes:
        settle()
        mapping = membership.mapping(virtual_nodes)
        busy = {mapping.nodes_of(device)[0] for device in membership.devices}
        return stopwatch.step(tuple(int(node in busy) for node in range(virtual_nodes)), 0)

    most, *fewer = wanted["counts"]
    deadline = time.monotonic() + wanted["seconds"]
    while len(membership.devices) < most and not (peers.is_lead and time.monotonic() > deadline):
        step()
        time.sleep(PAUSE_SECONDS)
    devices, seconds = membership.devices, {}
    for count in (most, *fewer) if len(devices) == most else (1,):
        if peers.is_lead and len(membership.devices) > count:
            membership.shrink(count)
        while len(membership.devices) > count:
            step()
        steps = [step() for _ in range(SETTLING_STEPS + COMMUNICATION_STEPS)][SETTLING_STEPS:]
        times = [timed.step_seconds for timed in steps if timed.is_good]
        if peers.is_lead and len(times) < FEWEST_STEPS:
            raise ConfigError(TOO_SLOW)
        if len(membership.devices) == count:  # fewer, if some were lost
            seconds[count] = statistics.median(times or [timed.step_seconds for timed in steps])
            if peers.is_lead:
                report(job, {"devices": count, "step_seconds": seconds[count]})
    return {"devices": devices, "step_seconds": seconds}


def report(job: JobContext, line: dict[str, Any]) -> None:
    """Show progress to whoever waits for the result."""
    with (job.folder / PROGRESS).open("a") as file:
        file.write(json.dumps(line) + "\n")


def measured_sizes(largest: int) -> Iterator[int]:
    """Powers of two and their mid-points: 1, 2, 3, 4, 6, 8, 12, ..."""
    size = 1
    while size <= largest:
        yield size
        if size > 1 and size + size // 2 <= largest:
            yield size + size // 2
        size *= 2


def interval(times: list[float]) -> tuple[float, float]:
    """Where the median of *times* is, most likely: 1.57 quartile ranges over the root of their number, either way."""
    middle = statistics.median(times)
    if len(times) < 2:
        return middle, middle
    low, _, high = statistics.quantiles(times, n=4, method="inclusive")
    reach = 1.57 * (high - low) / len(times) ** 0.5
    return middle - reach, middle + reach


@contextlib.contextmanager
def limited(limit_bytes: int | None) -> Iterator[None]:
    """Let memory run out at *limit_bytes*, for real."""
    if limit_bytes is None:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _reset_peak(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.reset_peak_memory_stats(device)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak_bytes(device: torch.device) -> int:
    if device.type != "cpu":
        return int(torch.accelerator.max_memory_allocated(device))
    return int(_status("VmHWM").split()[0]) * 1024


def _status(key: str) -> str:
    fields: Mapping[str, str] = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line
    )
    return fields[key]
