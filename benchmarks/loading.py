"""What fetching the next shards ahead is worth, on jobs that are bound by their data.

A shard is decoded and augmented in Python and numpy, or waited for as a disk or a network would have it. Each way to
load trains in turn in one process, with a core to spare and without one.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import statistics
import time
import zlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

import virtualflow as vf
from benchmarks import report, streaming
from benchmarks.arena import Runs, busy_seconds
from benchmarks.settings import SETTINGS
from virtualflow.core.sharding import GlobalBatch

WAYS: dict[str, int | None] = {"training thread": 0, "automatic": None, "one loader process": 1}
VIRTUAL_NODES, NODE_SIZE, STEPS = 4, 8, 4
EXAMPLES, STORED, SIDE = 1_000_000, 320, 32
WAIT_SECONDS = 0.002


class Compressed:
    """Images as they lie on a disk: unpacked, cropped, flipped and normalised one by one."""

    def __init__(self) -> None:
        images = np.random.default_rng(0).integers(0, 64, (64, 3, STORED, STORED), dtype=np.uint8)
        self._packed = [zlib.compress(image.tobytes(), 1) for image in images]

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        packed = self._packed[index % len(self._packed)]
        image = np.frombuffer(zlib.decompress(packed), dtype=np.uint8).reshape(3, STORED, STORED)
        top, left = random.randrange(STORED - SIDE), random.randrange(STORED - SIDE)
        crop = image[:, top : top + SIDE, left : left + SIDE].astype(np.float32)
        crop = crop[:, :, ::-1] if random.random() < 0.5 else crop
        return torch.from_numpy((crop - crop.mean()) / (crop.std() + 1e-6)), index % 10


class Waiting:
    """Images that take a while to come, and no work."""

    def __init__(self) -> None:
        self._images = torch.randn(64, 3, SIDE, SIDE)

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(WAIT_SECONDS)
        return self._images[index % 64], index % 10


@dataclass(slots=True)
class Training:
    """A job that has come to its first batch; each step may be timed."""

    trainer: vf.Trainer
    epochs: Iterator[int]
    batches: Generator[GlobalBatch, None, None]

    def seconds(self, steps: int) -> float:
        # The first step is not timed: what a loader process fetched while others had their turn would be free.
        self.trainer.step(next(self.batches))
        started = time.perf_counter()
        for _ in range(steps):
            self.trainer.step(next(self.batches))
        return time.perf_counter() - started


def started(dataset: Callable[[], Compressed | Waiting], loader_workers: int | None) -> Training:
    setting = SETTINGS["resnet"]
    vf.seed(0)
    model = setting.model()
    trainer = vf.Trainer(
        model,
        setting.optimizer(model),
        setting.loss,
        batch_size=VIRTUAL_NODES * NODE_SIZE,
        virtual_nodes=VIRTUAL_NODES,
        seed=0,
        loader_workers=loader_workers,
    )
    epochs = trainer.epochs(1)
    next(epochs)
    return Training(trainer, epochs, cast(Generator[GlobalBatch, None, None], trainer.batches(dataset())))


def run(*, quick: bool) -> None:
    """Time all ways in turn; compare each with loading in the training thread. Then read a stream."""
    section, results = report.Section("loading", quick=quick), {}
    cores = os.sched_getaffinity(0)
    for title, dataset in (("unpack and augment", Compressed), ("wait 2 ms an example", Waiting)):
        for available in dict.fromkeys((len(cores), 1)):
            os.sched_setaffinity(0, sorted(cores)[:available])
            runs = _race(dataset, 3 if quick else 12)
            os.sched_setaffinity(0, cores)
            key = f"{title}, {available} core(s)"
            base = runs.seconds["training thread"]
            results[key] = {
                "against the training thread": {way: report.ratio(base, own) for way, own in runs.seconds.items()},
                "others": statistics.mean(runs.others),  # cores that other processes kept busy
                "seconds": runs.seconds,
            }
            _show(section, key, runs)
    section.save(results)
    streaming.run(quick=quick)


def _show(section: report.Section, key: str, runs: Runs) -> None:
    rows = [
        [
            way,
            f"{statistics.median(runs.seconds[way]) / STEPS * 1e3:.0f} ms",
            report.ratio(runs.seconds["training thread"], runs.seconds[way]),
        ]
        for way in WAYS
    ]
    title = f"{key}: ResNet-20, {VIRTUAL_NODES} virtual nodes of {NODE_SIZE} on one device\n{runs.disturbance}"
    section.show(title, ["loaded by", "step", "throughput (middle half)"], rows)


def _race(dataset: Callable[[], Compressed | Waiting], rounds: int) -> Runs:
    trainings = {way: started(dataset, loader_workers) for way, loader_workers in WAYS.items()}
    runs = Runs()
    shuffle = random.Random(0).shuffle
    try:
        for number in range(rounds + 1):
            order = list(trainings)
            shuffle(order)
            for way in order:
                before, cpu = busy_seconds(), _own_seconds()
                seconds = trainings[way].seconds(STEPS)
                if number:  # the first round warms up
                    runs.note(way, seconds, _own_seconds() - cpu, busy_seconds() - before)
    finally:
        for training in trainings.values():
            training.batches.close()
    return runs


def _own_seconds() -> float:
    """CPU time of this process and of its loader processes."""
    ticks = 0
    for process in multiprocessing.active_children():
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")
