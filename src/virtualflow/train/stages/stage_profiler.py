"""Measures the stages of a user's own script on this device, one at a time: the whole model does not have to fit.

Each stage runs as it does in training, as the cell of one virtual node, on what the stage before it has handed on.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from virtualflow.core.cell_schedule import BACKWARD, FORWARD, CellRun
from virtualflow.core.cells import Cells
from virtualflow.core.membership import Group
from virtualflow.core.profile import LARGEST, MEMORY, TIME
from virtualflow.core.sharding import GlobalBatch
from virtualflow.core.stage_profile import Link, StagePoint, UnitFigures
from virtualflow.errors import ConfigError
from virtualflow.train import run_facts
from virtualflow.train.attempt import Attempt
from virtualflow.train.data import Feed, Request, Shard
from virtualflow.train.instruments import Engine
from virtualflow.train.memory_advice import is_out_of_memory
from virtualflow.train.pace import Pace
from virtualflow.train.profiler import (
    FEWEST_STEPS,
    MOST_STEPS,
    RESULT,
    TIGHT,
    TOO_SLOW,
    WARM_UP_STEPS,
    interval,
    limited,
    measured_sizes,
    report,
)
from virtualflow.train.stages.cell_runs import CellRunner
from virtualflow.train.stages.crossings import Crossing, Crossings, MessageSizes
from virtualflow.train.stages.held_stages import HeldStages
from virtualflow.train.stages.loss_scale import LossScale
from virtualflow.train.stages.staging import Staging
from virtualflow.train.stages.unit_sums import JobSums
from virtualflow.train.state import tensors_in

HERE, ELSEWHERE = "here", "elsewhere"
UPDATES = 5
MESSAGE_BYTES, ROUND_TRIPS = 4 << 20, 20


def measure(engine: Engine, staging: Staging, feed: Feed, examples: int, wanted: Mapping[str, Any]) -> None:
    """Measure what *wanted* names on *examples* that *feed* loads, and leave the result in the job's folder."""
    job = engine.peers.membership.job
    device = torch.empty(0, device=job.device_type).device
    if wanted["what"] == "communication":
        raise ConfigError(
            "communication between machines is not measured for a model in stages. Leave out --machines and --listen."
        )
    if wanted["what"] == "link":
        result: dict[str, Any] = {"link": asdict(_link(engine.peers.group, device))}
    else:
        bench = _Bench(engine, staging, feed, examples, device)
        with limited(wanted.get("memory_limit")):
            result = bench.run(wanted, lambda line: report(job, line))
        result["memory_bytes"] = wanted.get("memory_limit") or _memory_of(device)
    facts = run_facts.environment(device) | {"parameters": staging.parameters}
    (job.folder / RESULT).write_text(json.dumps(result | {"facts": facts}))


class _Bench:
    """Measures stage after stage, at one node size after another."""

    def __init__(self, engine: Engine, staging: Staging, feed: Feed, examples: int, device: torch.device) -> None:
        self._staging, self._feed, self._examples, self._device = staging, feed, examples, device
        self._virtual_nodes, self._pace = engine.virtual_nodes, engine.pace
        self._units: dict[tuple[int, ...], UnitFigures] = {}

    def run(self, wanted: Mapping[str, Any], show: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        rows: list[list[StagePoint]] = []
        ended_by, deadline = LARGEST, time.monotonic() + wanted["seconds"]
        for size in measured_sizes(wanted["largest"]):
            began = time.monotonic()
            try:
                rows.append(list(self._stages(size, show)))
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if not rows:
                    raise ConfigError(
                        f"not even one example of one stage fits into the memory of this device: {error}"
                    ) from error
                ended_by = MEMORY
                break
            took = time.monotonic() - began
            if size < wanted["largest"] and began + 3 * took > deadline:
                ended_by = TIME  # the next size would take too long
                break
        stages = [[asdict(row[stage]) for row in rows] for stage in range(self._staging.cut.count)]
        return {"stages": stages, "units": [asdict(unit) for unit in self._units.values()], "ended_by": ended_by}

    def _stages(self, size: int, show: Callable[[dict[str, Any]], None]) -> Iterator[StagePoint]:
        """All stages at one node size, each fed by the one before."""
        order = np.arange(size, dtype=np.int64) % self._examples
        attempt = Attempt(GlobalBatch(0, 0, (order,)), 0, 0)
        feed = _OneShard(self._feed.take(attempt.request(0)))
        handed_on: Crossing = []
        for stage in range(self._staging.cut.count):
            measured = _Stage(self._staging, stage, self._virtual_nodes, self._device, self._pace, handed_on)
            yield (point := measured.point(attempt, feed))
            show({"stage": stage, **asdict(point)})
            handed_on = [None if tensor is None else tensor.cpu() for tensor in measured.tape.outputs]
            for unit in measured.units(set(self._units)):
                self._units[unit.stages] = unit


class _Stage:
    """One stage on this device, and nothing of the others."""

    def __init__(
        self,
        staging: Staging,
        stage: int,
        virtual_nodes: int,
        device: torch.device,
        pace: Pace,
        handed_on: Crossing,
    ) -> None:
        self._stage, self._device, self._pace, self._stages = stage, device, pace, staging.cut.count
        self._held = HeldStages(staging.cut, staging.optimizer, 0, device)
        self._held.begin((stage,))
        self._sums = JobSums(staging.cut, virtual_nodes)
        self._sums.adopt(self._held)
        self._cells = _TimedCells(
            staging.cut,
            self._held,
            self._sums,
            staging.loss_fn,
            LossScale(None, device),
            pace,
            0,
            recompute=staging.recompute,
        )
        self._cells.adopt()
        self.tape = _Tape(handed_on, device)
        owners = tuple(HERE if place == stage else ELSEWHERE for place in range(staging.cut.count))
        self._grid = Cells((owners,))

    def point(self, attempt: Attempt, feed: Feed) -> StagePoint:
        kept, working = self._memory(attempt, feed)
        times: list[tuple[float, float]] = []
        for number in range(WARM_UP_STEPS + MOST_STEPS):
            self._pace.begin_step()
            self._run(attempt, feed)
            if number >= WARM_UP_STEPS and not self._pace.overran:
                times.append((self._cells.seconds[FORWARD], self._cells.seconds[BACKWARD]))
            low, high = interval([sum(both) for both in times]) if times else (0.0, 0.0)
            if len(times) >= FEWEST_STEPS and high - low < 2 * TIGHT * statistics.median(map(sum, times)):
                break
        if not times:
            raise ConfigError(TOO_SLOW)
        forward, backward = (statistics.median(column) for column in zip(*times, strict=True))
        crossing = sum(tensor.nbytes for tensor in self.tape.outputs if tensor is not None)
        return StagePoint(len(attempt.batch.shards[0]), forward, backward, kept, working, crossing)

    def units(self, known: set[tuple[int, ...]]) -> Iterator[UnitFigures]:
        """What the units that are here consist of, besides those that are *known*."""
        for unit in self._held.units:
            if unit.stages in known:
                continue
            tensors = [self._held.parameters[name] for name in unit.parameters]
            buffers = [self._held.buffers[name] for name in unit.buffers]
            optimizer = self._held.optimizers.get(unit)
            seconds = self._update_seconds(optimizer, tensors, unit.stages) if optimizer is not None else 0.0
            state = [] if optimizer is None else [t for value in optimizer.state.values() for t in tensors_in(value)]
            yield UnitFigures(
                unit.stages,
                sum(tensor.nbytes for tensor in (*tensors, *buffers)),
                sum(tensor.nbytes for tensor in state),
                8 * sum(tensor.numel() for tensor in (*tensors, *buffers)),
                seconds,
            )

    def _update_seconds(
        self, optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter], unit: tuple[int, ...]
    ) -> float:
        laps = []
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        for _ in range(UPDATES):
            started = time.perf_counter()
            self._pace.begin_cell()
            optimizer.step()
            self._pace.end_unit(unit, self._stages)
            _settle(self._device)
            laps.append(time.perf_counter() - started)
        return statistics.median(laps)

    def _memory(self, attempt: Attempt, feed: Feed) -> tuple[int, int]:
        """What the forward keeps for the backward, and what this makes anew."""
        own = (*self._held.modules[self._stage].parameters(), *self._held.buffers.values())
        weights = {tensor.untyped_storage().data_ptr() for tensor in own}
        with self._cells.noting_graphs():
            self._run(attempt, feed)
        forward, backward = self._cells.graphs[FORWARD], self._cells.graphs[BACKWARD]
        for tensor in (*self.tape.given, *self.tape.outputs):
            if tensor is not None:
                forward[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        kept = sum(size for address, size in forward.items() if address not in weights)
        anew = sum(size for address, size in backward.items() if address not in weights | forward.keys())
        return kept, anew

    def _run(self, attempt: Attempt, feed: Feed) -> None:
        """The forward and the backward of one virtual node."""
        self.tape.prepare()
        for sums in self._sums.of_stage(self._stage):
            sums.runs_here = True
            sums.begin()
        both = [CellRun(FORWARD, self._stage, 0), CellRun(BACKWARD, self._stage, 0)]
        self._cells.run(attempt, both, self._grid, HERE, self.tape, feed, lambda _: 0)


class _TimedCells(CellRunner):
    """Cells by the stopwatch."""

    seconds: dict[str, float]
    graphs: dict[str, dict[int, int]]  # of each direction: where the graph keeps memory, and how many bytes
    _notes_graphs = False

    @contextmanager
    def noting_graphs(self) -> Iterator[None]:
        """Note what graphs keep; time does not count meanwhile."""
        self._notes_graphs = True
        try:
            yield
        finally:
            self._notes_graphs = False

    def _forward(self, run: CellRun) -> None:
        self.seconds, self.graphs = {}, {}
        self._timed(super()._forward, run)

    def _backward(self, run: CellRun) -> None:
        self._timed(super()._backward, run)

    def _timed(self, make: Callable[[CellRun], None], run: CellRun) -> None:
        device = next(iter(self._held.parameters.values())).device if self._held.parameters else torch.device("cpu")
        _settle(device)
        started = time.perf_counter()
        if self._notes_graphs:
            kept = self.graphs.setdefault(run.direction, {})

            def note(tensor: Tensor) -> Tensor:
                kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
                make(run)
        else:
            make(run)
        _settle(device)
        self.seconds[run.direction] = time.perf_counter() - started


class _Tape(Crossings):
    """What a stage gets from its neighbours, and what it gives to them, without any."""

    def __init__(self, inputs: Crossing, device: torch.device) -> None:
        super().__init__(None, 1, device, MessageSizes())
        self._inputs = inputs
        self.given: Crossing = []  # to the stage, in the current run
        self.outputs: Crossing = []
        self._gradients: Crossing = []

    def prepare(self) -> None:
        """Before a run: what arrives has memory of its own, and has arrived."""
        self.given = [None if tensor is None else tensor.to(self._device, copy=True) for tensor in self._inputs]
        self._gradients = self._like_outputs()

    def expect(self, run: CellRun, source: int) -> None:
        pass

    def obtain(self, run: CellRun) -> Crossing:
        if run.direction == FORWARD:
            return self.given
        return self._gradients or self._like_outputs()  # there are none before the first run of all

    def _like_outputs(self) -> Crossing:
        return [
            torch.full_like(tensor, 1e-3) if tensor is not None and tensor.is_floating_point() else None
            for tensor in self.outputs
        ]

    def ship(self, tensors: Crossing, run: CellRun, to: int) -> None:
        if run.direction == FORWARD:
            self.outputs = tensors

    def arrived(self, run: CellRun) -> None:
        pass


class _OneShard(Feed):
    """Hands out one shard, which is here."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    def take(self, request: Request) -> Shard:
        return self._shard


def _link(group: Group | None, device: torch.device) -> Link:
    """What a message between the first two workers costs: half of a round trip."""
    assert group is not None
    short, long = (_trip(group, torch.zeros(size, dtype=torch.uint8, device=device)) for size in (1, MESSAGE_BYTES))
    return Link(short, MESSAGE_BYTES / max(long - short, 1e-9))


def _trip(group: Group, message: Tensor) -> float:
    times = []
    for _ in range(ROUND_TRIPS):
        started = time.perf_counter()
        answer = group.receive(torch.empty_like(message), 1 - group.rank, 0)
        if group.rank == 0:
            group.send(message, 1, 0).wait()
            answer.wait()
        else:
            answer.wait()
            group.send(message, 0, 0).wait()
        times.append((time.perf_counter() - started) / 2)
    return statistics.median(times)


def _memory_of(device: torch.device) -> int | None:
    """Of an accelerator all that it has; a CPU's is not one process's own."""
    module = torch.get_device_module(device)
    return int(module.mem_get_info(device)[1]) if hasattr(module, "mem_get_info") else None


def _settle(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
