"""Each example once per epoch, loaded by the worker that needs it and by no other."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from tests.conftest import Launcher
from tests.train.small import make, regression, train
from virtualflow.errors import ConfigError
from virtualflow.testing import RecordingDataset

OWN = np.random.default_rng(0)
SCRIPT = Path(__file__).with_name("recording_job.py")


@pytest.mark.parametrize("loader_workers", [0, 2])
@pytest.mark.parametrize("devices", [1, 3])
def test_each_example_is_loaded_once_per_epoch_for_the_committed_attempt(
    run_job: Launcher, tmp_path: Path, devices: int, loader_workers: int
) -> None:
    folder = tmp_path / "ids"
    folder.mkdir()
    finished = run_job(SCRIPT, devices, [json.dumps({"folder": str(folder), "loader_workers": loader_workers})])
    assert finished.outcome.code == 0, finished.failure
    committed = {(step.epoch, step.step % 5): step.attempts - 1 for step in finished.steps}
    seen: dict[int, Counter[int]] = defaultdict(Counter)
    nodes_of: dict[str, set[int]] = {}
    for file in folder.iterdir():
        rows = [tuple(map(int, line.split())) for line in file.read_text().splitlines()]
        nodes_of[file.name] = {node for _, _, node, _, _ in rows}
        for epoch, step, _, attempt, index in rows:
            if attempt == committed[epoch, step]:
                seen[epoch][index] += 1
    assert seen == {epoch: Counter(range(36)) for epoch in (0, 1)}
    # Workers load only their own shards.
    assert sum(len(nodes) for nodes in nodes_of.values()) == 4
    assert len(nodes_of) == devices


def test_augmentation_depends_on_epoch_and_example_alone() -> None:
    class Noise:
        def __init__(self) -> None:
            self.seen: dict[int, float] = {}

        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> torch.Tensor:
            self.seen[index] = float(torch.rand(()))
            return torch.ones(6)

    results = []
    for sizes in (4, [1, 7]):
        data = Noise()
        train(make(loss_fn=lambda m, b: m(b).mean(), virtual_nodes=sizes), data)
        results.append(data.seen)
    assert results[0] == results[1]
    assert len(set(results[0].values())) == 8


def test_an_error_in_a_loader_process_reaches_the_script() -> None:
    class Broken:
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> torch.Tensor:
            raise FileNotFoundError(f"no image {index}")

    with pytest.raises(FileNotFoundError, match="no image"):
        train(make(loader_workers=1), Broken())


def test_datasets_that_can_not_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="length 0"):
        train(make(), [])
    with pytest.raises(ConfigError, match="map-style"):
        train(make(), iter([1, 2]))
    with pytest.raises(ConfigError, match="drop_last"):
        train(make(drop_last=True), regression(3))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))

    def __len__(self) -> int:
        return 8


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Stream(), "an IterableDataset: examples must have an index.*list"),
        ({"x": torch.ones(8, 6)}, "a dict of columns"),
        ((torch.ones(8, 6), torch.ones(8, 1)), "a tuple of tensors.*TensorDataset"),
    ],
)
def test_what_is_no_map_style_dataset_is_refused_with_what_to_pass_instead(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(make(), given)
    with pytest.raises(ConfigError, match=message):
        make().evaluate(given, lambda m, b: (0.0, 1))


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (RandomSampler(range(8), generator=torch.Generator()), r"a generator of its own \(\.generator\)"),
        (DistributedSampler(range(8), 2, 0), "picks out one worker's part"),
        (BatchSampler(SequentialSampler(range(8)), 4, drop_last=False), "Pass the inner sampler"),
        ([0, 1, 2], "expected a function of the epoch"),
        (lambda epoch: [], "gives no index at all"),
        (lambda epoch: [[0, 1], [2]], "lists of indices"),
        (lambda epoch: [True, False], "a mask of booleans"),
        (lambda epoch: [0.5], "values of type float64"),
        (lambda epoch: OWN.permutation(40), "another order when it is called again"),
    ],
)
def test_a_sampler_that_is_no_function_of_the_epoch_is_refused(sampler: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(make(sampler=sampler), regression())


@pytest.mark.parametrize(
    "sampler",
    [
        WeightedRandomSampler([1.0, 2.0, 3.0, 4.0] * 10, 24),
        RandomSampler(range(40)),
        lambda epoch: torch.randperm(40),
        lambda epoch: random.sample(range(40), 16) + list(np.random.permutation(8)),
    ],
)
def test_what_a_sampler_draws_depends_on_the_seed_and_the_epoch_alone(sampler: Any) -> None:
    def ids(disturbed: bool) -> list[list[int]]:
        trainer, seen = make(sampler=sampler), []
        for _ in trainer.epochs(2):
            if disturbed:
                torch.rand(7), random.random(), np.random.rand(3)
            seen.append([int(i) for batch in trainer.batches(regression()) for shard in batch.shards for i in shard])
        return seen

    calm = ids(False)
    assert calm == ids(True)
    assert calm[0] != calm[1]


def test_one_example_left_over_for_batch_norm_says_so() -> None:
    def model() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))

    with pytest.raises(ConfigError, match=r"virtual node 0 has one example only.*drop_last=True"):
        train(make(model()), regression(9))
    train(make(model(), drop_last=True), regression(9))


UNEQUAL = """
import os, virtualflow as vf
from tests.train.small import *
from virtualflow.train import solo
vf.seed(0)
trainer = make(mlp())
own = int(solo.current().device)
if "evaluate" in os.sys.argv:
    trainer.evaluate(regression(38 + own), lambda m, b: (0.0, 1))
train(trainer, regression(38 + own))
"""


@pytest.mark.parametrize("call", ["step", "evaluate"])
def test_workers_whose_dataset_has_another_length_are_told_so(run_job: Launcher, tmp_path: Path, call: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(UNEQUAL)
    finished = run_job(script, 2, [call])
    assert f"in {call} (global step 0), devices 0 and 1 have different batches" in finished.failure
    assert "dataset of another length" in finished.failure
    assert not finished.steps


def test_batches_belong_into_epochs_once() -> None:
    trainer = make()
    with pytest.raises(ConfigError, match=r"trainer\.epochs"):
        next(iter(trainer.batches(regression())))
    for _ in trainer.epochs(1):
        list(trainer.batches(regression()))
        with pytest.raises(ConfigError, match="ConcatDataset"):
            next(iter(trainer.batches(regression())))
    with pytest.raises(ConfigError, match="indices"):
        trainer.step(regression())


def test_a_recording_dataset_writes_what_was_asked_outside_of_training_too(tmp_path: Path) -> None:
    data = RecordingDataset([1, 2, 3], tmp_path / "ids")
    assert (len(data), data[1]) == (3, 2)
    assert (tmp_path / "ids").read_text() == "- - - - 1\n"


def test_loader_processes_fetch_the_next_shard_meanwhile(tmp_path: Path) -> None:
    class Noted:
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> torch.Tensor:
            with (tmp_path / "calls").open("a") as file:
                file.write(f"{os.getpid()}\n")
            return torch.ones(6)

    def calls() -> list[int]:
        return [int(line) for line in (tmp_path / "calls").read_text().split()]

    trainer = make(loss_fn=lambda m, b: m(b).mean(), loader_workers=1)
    for _ in trainer.epochs(1):
        batches = iter(trainer.batches(Noted()))
        trainer.step(next(batches))
        deadline = time.monotonic() + 60
        while calls().count(os.getpid()) == len(calls()) - 8 and time.monotonic() < deadline:
            time.sleep(0.01)
        # Without being asked for the second batch, another process has begun to load it.
        assert len(calls()) - calls().count(os.getpid()) > 8
        for batch in batches:
            trainer.step(batch)
    # The first step was replayed: its first shard is loaded here, those after it were on their way by then.
    assert calls().count(os.getpid()) == 2
