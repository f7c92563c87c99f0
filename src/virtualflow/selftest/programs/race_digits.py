"""A job of ``vf selftest``: exact and fast steps against a plain loop, or DDP, on the same devices and in turns.

All train the same network on the same number of micro batches to a step; on several devices the plain loop is
``DistributedDataParallel``, which all-reduces in the last backward only.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import virtualflow as vf
from virtualflow.selftest.programs.drawn_digits import drawn_digits
from virtualflow.selftest.programs.networks import NETWORKS
from virtualflow.selftest.programs.train_digits import loss_fn
from virtualflow.train import solo

NODES_PER_DEVICE = 2
WARM_UP_STEPS = 3


def main() -> None:
    """Run all sides in turns; print the seconds of a step, by side and round."""
    given = _options()
    vf.seed(0)
    library = dist.get_default_backend_for_device(_device())
    if len(solo.current().devices) > 1 and not dist.is_backend_available(library):
        _trainer(given, "fast")  # a job has one
        print(json.dumps({"lacking": library}), flush=True)
        return
    plainly = _determinism()
    exact, fast = _trainer(given, "exact"), _trainer(given, "fast")
    exactly = _determinism()  # of the whole process, since that Trainer was made; the others would not have it
    sides = {"plain": _plain(given), "exact": _steps(exact, given), "fast": _steps(fast, given)}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(1 + given.rounds):
        for name, steps in sides.items():
            _set_determinism(*(exactly if name == "exact" else plainly))
            _time(steps, WARM_UP_STEPS if number == 0 else 1)
            taken = _time(steps, given.steps)
            if number > 0:
                seconds[name].append(taken)
    if exact.is_lead:
        print(json.dumps(seconds), flush=True)


def _time(steps: Iterator[None], count: int) -> float:
    """The seconds of one of *count* steps."""
    _synchronise()
    start = time.perf_counter()
    for _ in range(count):
        next(steps)
    _synchronise()
    return (time.perf_counter() - start) / count


def _synchronise() -> None:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def _trainer(given: argparse.Namespace, reduction: str) -> vf.Trainer:
    model, optimizer = _made(given)
    nodes = NODES_PER_DEVICE * len(solo.current().devices)
    size = nodes * given.node_size
    return vf.Trainer(model, optimizer, loss_fn, batch_size=size, virtual_nodes=nodes, reduction=reduction)


def _steps(trainer: vf.Trainer, given: argparse.Namespace) -> Iterator[None]:
    data = _data(given)
    for _ in trainer.epochs(1_000_000):
        for batch in trainer.batches(data):
            trainer.step(batch)
            yield


def _plain(given: argparse.Namespace) -> Iterator[None]:
    model, optimizer = _made(given)
    device = _device()
    model.to(device)
    update: Any = torch.optim.AdamW.step
    step = update.__wrapped__  # without hooks: ours refuses an optimizer that no Trainer knows
    sum_later: Any = nullcontext
    if len(solo.current().devices) > 1:
        _form_group(given.store, device)
        model = nn.parallel.DistributedDataParallel(model)
        sum_later = model.no_sync
    loader = DataLoader(_data(given), given.node_size, shuffle=True, drop_last=True)
    shards = itertools.chain.from_iterable(itertools.repeat(loader))
    while True:
        with sum_later():
            for _ in range(NODES_PER_DEVICE - 1):
                _backward(model, next(shards), device)
        _backward(model, next(shards), device)
        step(optimizer)
        optimizer.zero_grad(set_to_none=True)
        yield


def _backward(model: nn.Module, shard: list[Tensor], device: torch.device) -> None:
    (loss_fn(model, [tensor.to(device) for tensor in shard]) / NODES_PER_DEVICE).backward()


def _form_group(store: Path, device: torch.device) -> None:
    membership = solo.current()
    rank, size = membership.devices.index(membership.device), len(membership.devices)
    library = dist.get_default_backend_for_device(device)
    dist.init_process_group(library, init_method=f"file://{store}", rank=rank, world_size=size)


def _made(given: argparse.Namespace) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = NETWORKS[given.network](given.width)
    model.to(_device())
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4)


def _device() -> torch.device:
    return torch.device(solo.current().job.device_type)


def _data(given: argparse.Namespace) -> TensorDataset:
    return drawn_digits(64 * given.node_size, seed=3)


def _determinism() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic


def _set_determinism(algorithms: bool, cudnn: bool) -> None:
    torch.use_deterministic_algorithms(algorithms)
    torch.backends.cudnn.deterministic = cudnn


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--node-size", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--store", type=Path, required=True)
    return parser.parse_args()
