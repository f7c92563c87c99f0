"""One side of a race: a training loop that runs some steps whenever the arena tells it to.

Started as a process of its own (or one for each device), so that what one side sets in its process, from
allocator to matrix library, is not given to the others.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.settings import SETTINGS, Batch, Endless, Setting

SOCKET = "VF_BENCH_SOCKET"
SENTINEL = "1/16"  # the rate of the contender that has one


@dataclass(frozen=True, slots=True)
class Task:
    """What every contender does: *virtual_nodes* micro batches to a step, on *devices* devices together."""

    setting: Setting
    virtual_nodes: int
    devices: int

    @property
    def micro_batches(self) -> int:
        """Of one device in one step."""
        return self.virtual_nodes // self.devices


def plain(task: Task) -> Iterator[None]:
    """Gradient accumulation as one writes it by hand."""
    if task.devices > 1:
        yield from distributed(task)
    model, optimizer, dataset = _made(task)
    batches = iter(_loader(task, dataset))
    while True:
        for _ in range(task.micro_batches):
            loss = task.setting.loss(model, next(batches)) / task.micro_batches
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield


def distributed(task: Task) -> Iterator[None]:
    """The same with DistributedDataParallel, which all-reduces in the last backward only."""
    torch.distributed.init_process_group("gloo")
    model, optimizer, dataset = _made(task)
    replica = nn.parallel.DistributedDataParallel(model)
    batches = iter(_loader(task, dataset, DistributedSampler(dataset)))
    while True:
        with replica.no_sync():
            for _ in range(task.micro_batches - 1):
                loss = task.setting.loss(replica, next(batches)) / task.micro_batches
                loss.backward()
        loss = task.setting.loss(replica, next(batches)) / task.micro_batches
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield


def accelerate(task: Task) -> Iterator[None]:
    """Hugging Face Accelerate, as its guide to gradient accumulation has it."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=task.micro_batches)
    model, optimizer, dataset = _made(task)
    model, optimizer, loader = accelerator.prepare(model, optimizer, _loader(task, dataset))
    for number, batch in enumerate(itertools.chain.from_iterable(itertools.repeat(loader)), 1):
        with accelerator.accumulate(model):
            accelerator.backward(task.setting.loss(model, batch))
            optimizer.step()
            optimizer.zero_grad()
        if number % task.micro_batches == 0:
            yield


def fabric(task: Task) -> Iterator[None]:
    """Lightning Fabric, as its guide to gradient accumulation has it."""
    from lightning_fabric import Fabric

    strategy = "ddp" if task.devices > 1 else "auto"
    fabric = Fabric(accelerator="cpu", devices=task.devices, strategy=strategy)
    fabric.launch()
    model, optimizer, dataset = _made(task)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(_loader(task, dataset))
    for number, batch in enumerate(itertools.chain.from_iterable(itertools.repeat(loader)), 1):
        accumulating = number % task.micro_batches != 0
        with fabric.no_backward_sync(model, enabled=accumulating):
            fabric.backward(task.setting.loss(model, batch) / task.micro_batches)
        if not accumulating:
            optimizer.step()
            optimizer.zero_grad()
            yield


def virtualflow(task: Task, reduction: str, sentinel: str = "0") -> Iterator[None]:
    """The same as a VirtualFlow script."""
    import virtualflow as vf

    vf.seed(0)
    model, optimizer, dataset = _made(task)
    trainer = vf.Trainer(
        model,
        optimizer,
        task.setting.loss,
        batch_size=task.virtual_nodes * task.setting.node_size,
        virtual_nodes=task.virtual_nodes,
        reduction=reduction,
        sentinel=sentinel,
    )
    for _ in trainer.epochs(1_000_000):
        for batch in trainer.batches(dataset):
            trainer.step(batch)
            yield


def _made(task: Task) -> tuple[nn.Module, torch.optim.Optimizer, Endless]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = task.setting.model()
    return model, task.setting.optimizer(model), task.setting.dataset()


def _loader(task: Task, dataset: Endless, sampler: DistributedSampler[object] | None = None) -> DataLoader[Batch]:
    return DataLoader(dataset, batch_size=task.setting.node_size, shuffle=sampler is None, sampler=sampler)


def loop(kind: str, task: Task) -> Iterator[None]:
    """The training loop of contender *kind*: does a step whenever it is asked for the next item."""
    if kind in ("exact", "fast"):
        return virtualflow(task, kind)
    if kind == "sentinel":
        return virtualflow(task, "exact", SENTINEL)
    return {"plain": plain, "accelerate": accelerate, "fabric": fabric}[kind](task)


def serve(name: str, steps: Iterator[None]) -> None:
    """Do as many steps as the arena says, and tell how long they took, until it hangs up."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[SOCKET])
        lines = connection.makefile("rw", buffering=1)
        print(json.dumps({"name": name}), file=lines, flush=True)
        for line in lines:
            started, worked = time.perf_counter(), time.process_time()
            for _ in range(int(line)):
                next(steps)
            taken = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - worked}
            print(json.dumps(taken), file=lines, flush=True)
    os._exit(0)  # peers may be gone already: nothing here waits for them


if __name__ == "__main__":
    name, kind, chosen, virtual_nodes, devices, node_size = sys.argv[1:]
    setting = SETTINGS[chosen]
    setting = replace(setting, node_size=int(node_size) or setting.node_size)
    serve(name, loop(kind, Task(setting, int(virtual_nodes), int(devices))))
