"""What ``benchmarks.pipelines`` runs on some devices: a GPT that is cut. Prints JSON.

Usage: pipelines_job.py {memory,time,torch} STAGES STEPS SCHEDULE. With *torch*, torch.distributed.pipelining and a
Trainer take turns in the same processes, step by step.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import virtualflow as vf
from benchmarks.ledger import Ledger
from benchmarks.settings import Endless
from virtualflow.train import other_optimizers, solo

BYTES, WIDTH, HEADS, LENGTH = 256, 256, 4, 64
LAYERS, VIRTUAL_NODES, NODE_SIZE = 4, 8, 4


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.mix = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.first(x)).view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.mix(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(nn.functional.gelu(self.widen(self.second(x))))


class Embed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.byte, self.place = nn.Embedding(BYTES, WIDTH), nn.Embedding(LENGTH, WIDTH)

    def forward(self, words: Tensor) -> Tensor:
        return self.byte(words) + self.place.weight


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, BYTES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(x))


def stage(place: int, stages: int) -> nn.Module:
    """One of *stages* parts with as many layers each."""
    parts: list[nn.Module] = [Layer() for _ in range(LAYERS // stages)]
    return nn.Sequential(*[Embed()] * (place == 0), *parts, *[Head()] * (place == stages - 1))


def dataset() -> Endless:
    words = torch.randint(0, BYTES, (256, LENGTH + 1), generator=torch.Generator().manual_seed(0))
    return Endless(words[:, :-1].contiguous(), words[:, 1:].contiguous())


def loss(output: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(output.flatten(0, 1), targets.flatten())


def adamw(params: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=1e-3)


def trainer(stages: int, schedule: str) -> vf.Trainer:
    return vf.Trainer(
        stages=[lambda place=place: stage(place, stages) for place in range(stages)],
        optimizer=adamw,
        loss_fn=lambda output, batch: loss(output, batch[1]),
        batch_size=VIRTUAL_NODES * NODE_SIZE,
        virtual_nodes=VIRTUAL_NODES,
        pipeline=schedule,
        copies=1,
        seed=0,
        loader_workers=0,
    )


class TorchPipeline:
    """torch.distributed.pipelining on the same stages and micro-batches: rank r has stages r, r + devices, ..."""

    def __init__(self, stages: int, schedule: str, rank: int, devices: int) -> None:
        from torch.distributed import pipelining

        mine = range(rank, stages, devices)
        torch.manual_seed(0)
        self._modules = [stage(place, stages) for place in mine]
        kwargs = {"num_stages": stages, "device": torch.device("cpu")}
        built = [
            pipelining.PipelineStage(module, place, **kwargs)  # type: ignore[arg-type]
            for place, module in zip(mine, self._modules, strict=True)
        ]
        kinds: dict[str, Callable[..., Any]] = {"1f1b": pipelining.Schedule1F1B, "gpipe": pipelining.ScheduleGPipe}
        make = kinds[schedule] if len(built) == 1 else pipelining.ScheduleInterleaved1F1B
        self._schedule = make(built[0] if len(built) == 1 else built, VIRTUAL_NODES, loss_fn=loss)
        self._optimizer = adamw([parameter for module in self._modules for parameter in module.parameters()])
        other_optimizers.declare((self._optimizer,))  # it is nobody's mistake
        self._first, self._last = rank == 0, rank == (stages - 1) % devices

    def step(self, inputs: Tensor, targets: Tensor) -> None:
        losses: list[Tensor] = []
        given = {"target": targets, "losses": losses} if self._last else {}
        self._schedule.step(*([inputs] if self._first else []), **given)
        self._optimizer.step()
        self._optimizer.zero_grad()


def take_turns(stages: int, steps: int, schedule: str) -> dict[str, dict[str, list[float]]]:
    """Seconds of each step of both, and of the processors over all devices. All workers meet before each."""
    ours = trainer(stages, schedule)
    rank, devices = int(solo.current().device), len(solo.current().devices)
    store = ours.broadcast(tempfile.mkdtemp(prefix="vf-bench-"))
    address = f"file://{Path(store) / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=devices)
    theirs = TorchPipeline(stages, schedule, rank, devices)
    rows = dataset()
    batch = [torch.stack(part) for part in zip(*(rows[n] for n in range(VIRTUAL_NODES * NODE_SIZE)), strict=True)]
    seconds: dict[str, list[float]] = {"torch": [], "ours": []}
    processor: dict[str, list[float]] = {"torch": [], "ours": []}
    for number, mine in enumerate(ours.steps(steps, rows)):
        sides: dict[str, Callable[[], object]] = {
            "torch": lambda: theirs.step(*batch),
            "ours": lambda mine=mine: ours.step(mine),  # type: ignore[misc]
        }
        for side in ("torch", "ours") if number % 2 else ("ours", "torch"):
            torch.distributed.barrier()
            started, busy = time.perf_counter(), time.process_time()
            sides[side]()
            processor[side].append(time.process_time() - busy)
            torch.distributed.barrier()
            seconds[side].append(time.perf_counter() - started)
    torch.distributed.destroy_process_group()
    everyone = ours.gather(processor)
    summed = {side: [sum(taken) for taken in zip(*(their[side] for their in everyone), strict=True)] for side in sides}
    both = {"seconds": seconds, "processor": summed}
    return {kind: {side: taken[2:] for side, taken in of.items()} for kind, of in both.items()}  # without replays


def measured(what: str, stages: int, steps: int, schedule: str) -> dict[str, Any]:
    """The peak of live tensors on each device, or the median time of a step; and what was trained."""
    seconds: list[float] = []
    with Ledger() if what == "memory" else tempfile.TemporaryDirectory() as ledger:
        one = trainer(stages, schedule)
        for batch in one.steps(steps, dataset()):
            started = time.perf_counter()
            one.step(batch)
            seconds.append(time.perf_counter() - started)
            if one.global_step == steps:
                break
    peaks = one.gather(ledger.peak()) if isinstance(ledger, Ledger) else []
    return {"peaks": peaks, "seconds": statistics.median(seconds[1:]), "digest": one.digest()}


def main() -> None:
    what, stages, steps, schedule = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    found = take_turns(stages, steps, schedule) if what == "torch" else measured(what, stages, steps, schedule)
    if solo.leads():
        print(json.dumps(found))


if __name__ == "__main__":
    main()
