"""A Trainer over streams: epochs and steps, loader processes, resumes; real jobs through resizes and deaths."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import virtualflow as vf
from tests.streams.rows import BLOCK, EACH, SHARDS, Noting, looked_at, once, reads, rows
from tests.train.small import make
from virtualflow.core.sharding import GlobalBatch
from virtualflow.errors import ConfigError
from virtualflow.train import data


def times(number: int, counter: Counter[int]) -> Counter[int]:
    return Counter({key: number * count for key, count in counter.items()})


def squares(model: Any, batch: torch.Tensor) -> torch.Tensor:
    return (model(batch) ** 2).mean()


def passed_over(stream: vf.Stream, epochs: int = 2, **options: Any) -> str:
    trainer = make(loss_fn=squares, **options)
    for _ in trainer.epochs(epochs):
        for batch in trainer.batches(stream):
            trainer.step(batch)
    return trainer.digest()


def test_epochs_over_a_stream_read_each_example_once(tmp_path: Path) -> None:
    passed_over(rows(tmp_path), epochs=3, loader_workers=0)  # on a slow machine, processes would be asked to read on
    assert reads(tmp_path) == times(3, once()) + looked_at()


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_loader_processes_give_the_same_bits_and_read_no_more(workers: int, tmp_path: Path) -> None:
    alone = passed_over(rows(tmp_path), loader_workers=0)
    (tmp_path / "reads").unlink()
    assert passed_over(rows(tmp_path), loader_workers=workers) == alone
    # The first step's replay is loaded by the process that has read its examples.
    assert reads(tmp_path) == times(2, once()) + looked_at()


def test_a_stream_that_is_slow_is_read_ahead_without_being_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = passed_over(rows(tmp_path), loader_workers=0)
    monkeypatch.setattr(data, "START_SECONDS", -1.0)
    assert passed_over(rows(tmp_path).map(Noting(tmp_path))) == alone
    assert len(list(tmp_path.glob("used-*"))) == 1 + 2  # processes: this one, and one for each epoch


def test_what_the_data_draw_depends_on_the_example_alone(tmp_path: Path) -> None:
    def noisy(shard: int) -> Iterator[torch.Tensor]:
        for _ in range(EACH):
            yield torch.rand(6) + random.random() + float(np.random.rand())

    def more(example: torch.Tensor) -> torch.Tensor:
        return example + torch.rand(6)

    stream = vf.Stream(noisy, shards=SHARDS, examples=EACH, block=4).map(more)
    assert passed_over(stream, loader_workers=0) == passed_over(stream, loader_workers=2)


def test_the_order_is_that_of_the_seed(tmp_path: Path) -> None:
    first = passed_over(rows(tmp_path), seed=1)
    assert passed_over(rows(tmp_path), seed=1) == first
    assert passed_over(rows(tmp_path), seed=2) != first


def saved_at(step: int, path: Path, trainer: vf.Trainer, batches: Iterator[GlobalBatch]) -> None:
    for batch in batches:
        trainer.step(batch)
        if trainer.global_step == step:
            trainer.save(path)
            return


@pytest.mark.parametrize("known", [EACH, None])
def test_a_resumed_job_goes_on_in_its_steps(known: int | None, tmp_path: Path) -> None:
    whole = make(loss_fn=squares, loader_workers=0)
    losses = [whole.step(batch) for batch in whole.steps(40, rows(tmp_path, examples=known))]
    needed = reads(tmp_path).total()
    half = make(loss_fn=squares, loader_workers=0)
    saved_at(23, tmp_path / "half.pt", half, half.steps(40, rows(tmp_path, examples=known)))
    resumed = make(loss_fn=squares, loader_workers=0)
    resumed.load(tmp_path / "half.pt")
    assert [resumed.step(batch) for batch in resumed.steps(40, rows(tmp_path, examples=known))] == losses[23:]
    assert reads(tmp_path).total() - 2 * needed <= 4 * BLOCK + 2  # one block again for each virtual node


def test_drop_last_leaves_out_short_batches(tmp_path: Path) -> None:
    sizes = []
    trainer = make(loss_fn=squares, drop_last=True)
    for _ in trainer.epochs(1):
        for batch in trainer.batches(rows(tmp_path)):
            sizes.append(batch.examples)
            trainer.step(batch)
    assert sizes == [8] * (2 * EACH // 2)


def test_what_a_stream_can_not_do_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"how many examples.*stream.counted\(\).*trainer.steps"):
        passed_over(rows(tmp_path, examples=None))
    with pytest.raises(ConfigError, match="sampler= out"):
        passed_over(rows(tmp_path), sampler=lambda epoch: [epoch])
    with pytest.raises(ConfigError, match=r"shards=8, and the job 3 virtual nodes.*shards=9"):
        passed_over(rows(tmp_path), virtual_nodes=3)
    with pytest.raises(ConfigError, match=r"list\(stream\)"):
        make().predict(rows(tmp_path))
    with pytest.raises(ConfigError, match="Check what it reads"):
        passed_over(rows(tmp_path, examples=0))


def test_shards_that_are_others_when_they_are_opened_again_are_refused() -> None:
    generator, numbers = random.Random(3), iter(range(1000))
    for drawn in (lambda _: [generator.random() for _ in range(9)], lambda _: numbers):
        trainer = make()
        with pytest.raises(ConfigError, match="another first example"):
            next(trainer.steps(3, vf.Stream(drawn, shards=4)))
