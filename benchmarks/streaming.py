"""What reading a stream costs on a job that is bound by its data, against a plain loader over the same files.

Both make the same passes over the same JSON Lines files, and train next to nothing on each batch. What counts is how
many bytes they read, which no other process can disturb, and how many rows a second they get through.
"""

from __future__ import annotations

import json
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import virtualflow as vf
from benchmarks import report

FILES, ROWS, NUMBERS = 8, 2048, 256  # of each file; of each row
BATCH, VIRTUAL_NODES, BLOCK = 1024, 4, 256
LOADER, STREAM = "DataLoader", "vf.jsonl"


class Lines(IterableDataset[Any]):
    """The files as a plain loader reads them, one line after another."""

    def __init__(self, files: list[Path]) -> None:
        self._files = files

    def __iter__(self) -> Iterator[Any]:
        assert get_worker_info() is None
        for file in self._files:
            with file.open() as lines:
                yield from map(json.loads, lines)


def collate(rows: list[Any]) -> Tensor:
    return torch.from_numpy(np.asarray(rows, dtype=np.float32) / 50_000)


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()


def plainly(files: list[Path], epochs: int) -> None:
    """Train on what a DataLoader reads."""
    vf.seed(0)
    model = nn.Linear(NUMBERS, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    for _ in range(epochs):
        for batch in DataLoader(Lines(files), batch_size=BATCH, collate_fn=collate):
            optimizer.zero_grad()
            loss_fn(model, batch).backward()
            optimizer.step()


def streamed(files: list[Path], epochs: int) -> None:
    """Train on the stream, whose blocks are shuffled."""
    vf.seed(0)
    model = nn.Linear(NUMBERS, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    options = {"batch_size": BATCH, "virtual_nodes": VIRTUAL_NODES, "collate_fn": collate, "loader_workers": 0}
    trainer = vf.Trainer(model, optimizer, loss_fn, **options)  # type: ignore[arg-type]
    stream = vf.jsonl(files, shards=FILES, block=BLOCK, count=False)
    for batch in trainer.steps(epochs * FILES * ROWS // BATCH, stream):
        trainer.step(batch)


def measured(read: Callable[[list[Path], int], None], files: list[Path], epochs: int) -> dict[str, float]:
    """What *read* reads, and how long that takes."""
    before, cpu, started = _bytes_read(), resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    read(files, epochs)
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime
    return {"bytes": _bytes_read() - before, "seconds": seconds, "cpu": used}


def _bytes_read() -> int:
    """All that this process has read so far, from whatever file."""
    return int(Path("/proc/self/io").read_text().split("rchar:")[1].split()[0])


def run(*, quick: bool) -> None:
    """Let both read the same files in turn."""
    section = report.Section("streaming", quick=quick)
    rounds, epochs = (2, 1) if quick else (7, 2)
    ways = {LOADER: plainly, STREAM: streamed}
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as folder:
        files = _written(Path(folder))
        for number in range(rounds + 1):
            for way in sorted(ways, reverse=bool(number % 2)):
                one = measured(ways[way], files, epochs)
                if number:  # the first round warms up
                    found[way].append(one)
        size = epochs * sum(file.stat().st_size for file in files)
    times = {kind: {way: [one[kind] for one in found[way]] for way in ways} for kind in ("seconds", "cpu")}
    results = {
        "bytes of the files": size,
        "bytes": {way: max(one["bytes"] for one in found[way]) for way in ways},
        "rows a second, against the loader": report.ratio(times["seconds"][LOADER], times["seconds"][STREAM]),
        "rows a second of processor time, against the loader": report.ratio(times["cpu"][LOADER], times["cpu"][STREAM]),
        **times,
    }
    rows = [
        [way, f"{results['bytes'][way] / size:.3f}", report.ratio(times["cpu"][LOADER], times["cpu"][way])]
        for way in ways
    ]
    section.show(
        f"{size / 1e6:.0f} MB of JSON Lines", ["read by", "bytes, against the files", "rows a CPU second"], rows
    )
    section.save(results)


def _written(folder: Path) -> list[Path]:
    draw = random.Random(0)
    files = [folder / f"rows-{number}.jsonl" for number in range(FILES)]
    for file in files:
        rows = [[draw.randrange(50_000) for _ in range(NUMBERS)] for _ in range(ROWS)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return files
