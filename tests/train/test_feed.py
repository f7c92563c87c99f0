"""Loading ahead of use changes the time that a job takes, and nothing else."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset, default_collate

from tests.job.driven import Driven, to
from tests.train.small import make, regression, train
from virtualflow.backends.local import LocalBackend
from virtualflow.core.sharding import GlobalBatch
from virtualflow.errors import ConfigError
from virtualflow.job.coordinator import Coordinator
from virtualflow.train import data
from virtualflow.train.ahead import Announced, Request
from virtualflow.train.data import AheadBenefit, gathered

HERE = os.getpid()


class Noisy:
    """Augments with all three generators, and writes down which process did."""

    def __init__(self, calls: Path | None = None, items: Sequence[float] = (0.0,)) -> None:
        self.calls = calls
        self.items = [*items] * 40  # and no number of them, which might be that of an open file
        self.scale = 1.0

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.calls is not None:
            with self.calls.open("a") as file:
                file.write(f"{os.getpid()}\n")
        noise = float(torch.rand(())) + random.random() + float(np.random.rand())
        return self.scale * (torch.full((6,), float(index)) + noise)


def squares(model: Any, batch: torch.Tensor) -> torch.Tensor:
    return (model(batch / 40) ** 2).mean()


def total(model: Any, batch: torch.Tensor) -> tuple[torch.Tensor, int]:
    return model(batch).sum(), len(batch)


@pytest.fixture(params=[1, 2, None], ids=["one", "two", "automatic"])
def workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int | None:
    """Ways to load ahead; automatically, as soon as it can be known to be safe."""
    monkeypatch.setattr(data, "START_SECONDS", -1.0)
    return request.param  # type: ignore[no-any-return]


def processes(calls: Path) -> set[int]:
    return {int(line) for line in calls.read_text().split()}


def runs(pid: int) -> bool:
    """Whether a process is there and has not ended; that of a killed parent may wait a while to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def digest_of(dataset: Any, epochs: int = 2, **options: Any) -> str:
    trainer = make(loss_fn=squares, **options)
    for epoch in trainer.epochs(epochs):
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(epoch)
        for batch in trainer.batches(dataset):
            trainer.step(batch)
    return trainer.digest()


def test_bits_do_not_depend_on_who_loads(workers: int | None, tmp_path: Path) -> None:
    ahead = digest_of(Noisy(tmp_path / "ahead"), loader_workers=workers)
    here = digest_of(Noisy(tmp_path / "here"), loader_workers=0)
    assert ahead == here
    assert processes(tmp_path / "here") == {os.getpid()}
    assert len(processes(tmp_path / "ahead") - {os.getpid()}) == 2 * (workers or 1)  # each epoch's own


def test_loader_processes_see_the_dataset_as_it_is_when_the_epoch_begins(workers: int | None) -> None:
    class Curriculum(Noisy):
        def set_epoch(self, epoch: int) -> None:
            self.scale = 1.0 + epoch

    assert digest_of(Curriculum(), 3, loader_workers=workers) == digest_of(Curriculum(), 3, loader_workers=0)


def test_a_dataset_that_changes_in_the_middle_of_an_epoch_is_refused_or_loaded_in_step(workers: int | None) -> None:
    def run(loader_workers: int | None) -> str:
        trainer, dataset = make(loss_fn=squares, loader_workers=loader_workers), Noisy()
        for _ in trainer.epochs(1):
            for batch in trainer.batches(dataset):
                trainer.step(batch)
                dataset.scale *= 1.1
        return trainer.digest()

    if workers is None:
        assert run(None) == run(0)
    else:
        with pytest.raises(ConfigError, match=r"the dataset\.scale was changed while an epoch runs"):
            run(workers)


def test_a_large_array_that_was_changed_is_found_before_the_epoch_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    class Images(Noisy):
        def __init__(self) -> None:
            super().__init__()
            self.images = np.zeros((40, 64, 1024), dtype=np.float32)

        def __getitem__(self, index: int) -> torch.Tensor:
            return super().__getitem__(index) + torch.from_numpy(self.images[index, 0, :6])

    monkeypatch.setattr(data, "START_SECONDS", -1.0)
    trainer, dataset = make(loss_fn=squares), Images()
    with pytest.raises(ConfigError, match=r"the dataset\.images was changed"):  # noqa: PT012
        for _ in trainer.epochs(1):
            for batch in trainer.batches(dataset):
                trainer.step(batch)
                dataset.images[7, 0, 0] += 1


def test_a_dataset_that_keeps_something_of_its_calls_stays_in_the_training_thread(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Keeping(Noisy):
        def __init__(self, calls: Path) -> None:
            super().__init__(calls)
            self.kept: dict[int, torch.Tensor] = {}

        def __getitem__(self, index: int) -> torch.Tensor:
            return self.kept.setdefault(index, super().__getitem__(index))

    monkeypatch.setattr(data, "START_SECONDS", -1.0)
    dataset = Keeping(tmp_path / "calls")
    train(make(loss_fn=squares), dataset)
    assert processes(tmp_path / "calls") == {os.getpid()}
    assert len(dataset.kept) == 40
    # Asked for by name, they load in other processes; what the first attempt's replay keeps here is no change.
    train(make(loss_fn=squares, loader_workers=1), dataset)


def test_evaluate_and_predict_give_the_same(workers: int | None, tmp_path: Path) -> None:
    results = []
    for loader_workers in (0, workers):
        trainer, dataset = make(loss_fn=squares, loader_workers=loader_workers), Noisy(tmp_path / f"{loader_workers}")
        predicted = trainer.predict(dataset, lambda model, batch: model(batch))
        results.append((trainer.evaluate(dataset, total), predicted.tolist()))
    assert results[0] == results[1]
    assert processes(tmp_path / f"{workers}") - {os.getpid()}
    assert not multiprocessing.active_children()


def test_skipped_batches_are_not_loaded(workers: int | None, tmp_path: Path) -> None:
    digests = []
    for loader_workers in (0, workers):
        trainer, dataset = (
            make(loss_fn=squares, loader_workers=loader_workers),
            Noisy(tmp_path / f"{loader_workers}", (0.0, 0.0)),
        )
        for _ in trainer.epochs(1):
            for batch in trainer.batches(dataset):
                if batch.step < 3 or batch.step > 7:
                    trainer.step(batch)
        digests.append(trainer.digest())
    assert digests[0] == digests[1]


@pytest.mark.parametrize("fate", ["killed", "failing", "hanging"])
def test_a_loader_process_that_comes_to_grief_costs_time_alone(
    workers: int | None, fate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Doomed(Noisy):
        def __getitem__(self, index: int) -> torch.Tensor:
            if os.getpid() != HERE and index % 3 == 0:
                if fate == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                if fate == "failing":
                    raise RuntimeError("not here")
                if fate == "hanging":
                    time.sleep(60)
            return super().__getitem__(index)

    if fate == "hanging" and workers is not None:
        pytest.skip("processes that were asked for are waited for")
    monkeypatch.setattr(data, "PATIENCE_SECONDS", 0.2)
    assert digest_of(Doomed(), 1, loader_workers=workers) == digest_of(Noisy(), 1, loader_workers=0)


def test_an_error_of_the_dataset_reaches_the_script_as_it_is(workers: int | None) -> None:
    class Broken(Noisy):
        def __getitem__(self, index: int) -> torch.Tensor:
            if index == 33:
                raise FileNotFoundError(f"no image {index}")
            return super().__getitem__(index)

    trainer = make(loss_fn=squares, loader_workers=workers)
    with pytest.raises(FileNotFoundError, match="no image 33"):
        train(trainer, Broken())


def test_no_process_is_left_when_the_loop_is_left(workers: int | None) -> None:
    trainer = make(loss_fn=squares, loader_workers=workers)
    for _ in trainer.epochs(2):
        for batch in trainer.batches(Noisy()):
            trainer.step(batch)
            if batch.step == 2:
                assert len(multiprocessing.active_children()) == (workers or 1)
                break
        assert not multiprocessing.active_children()


def test_no_process_is_left_when_a_step_fails(workers: int | None) -> None:
    def failing(model: Any, batch: torch.Tensor) -> torch.Tensor:
        if trainer.global_step == 2:
            raise ZeroDivisionError
        return squares(model, batch)

    trainer = make(loss_fn=failing, loader_workers=workers)
    with pytest.raises(ZeroDivisionError):
        train(trainer, Noisy())
    assert not multiprocessing.active_children()


def test_loading_is_only_begun_elsewhere_when_that_would_have_paid() -> None:
    def after(
        shards: int, loading: float, computing: float, cpu: float, queued: float = 0.0, *, spare_core: bool
    ) -> bool:
        benefit, now = AheadBenefit(spare_core=spare_core), 0.0
        for _ in range(shards):
            benefit.loaded(now, now + loading, cpu, queued)
            now += loading + computing
        return benefit.proven

    assert not after(100, 0.0001, 0.1, 0.0001, spare_core=True)  # a few tensors
    assert after(10, 0.02, 0.1, 0.02, spare_core=True)
    assert not after(10, 0.02, 0.1, 0.02, spare_core=False)  # all cores compute
    assert after(10, 0.02, 0.1, 0.001, spare_core=False)  # but it waits for a disk
    assert not after(10, 0.02, 0.1, 0.01, 0.01, spare_core=True)  # other jobs have the cores
    assert not after(10, 1.0, 0.0001, 1.0, spare_core=True)  # nothing to hide it behind


def requests(step: int, nodes: int = 4, attempt: int = 0) -> list[Request]:
    return [Request(0, step, node, attempt, np.arange(2)) for node in range(nodes)]


def test_a_replay_asks_for_the_shards_of_its_step_again() -> None:
    announced = Announced([*requests(0), *requests(1)])
    assert [announced.next().key for _ in range(5)][-1] == (0, 1, 0, 0)  # type: ignore[union-attr]
    for request in requests(0):
        announced.taking(request)
    assert announced.again() is None
    announced.taking(requests(0, attempt=1)[0])
    assert [again.key for again in iter(announced.again, None)] == [(0, 0, node, 1) for node in (1, 2, 3)]
    announced.taking(requests(1)[0])
    assert announced.again() is None
    assert announced.next().key == (0, 1, 1, 0)  # type: ignore[union-attr]


def test_rows_of_tensors_are_gathered_as_they_would_be_collated() -> None:
    inputs = torch.arange(60.0).reshape(3, 20).T  # not contiguous
    dataset = Subset(TensorDataset(inputs, torch.arange(20), torch.rand(20, 2, 2) > 0.5), [5, 3, 9, 9, 0])
    rows = gathered(dataset, [4, 0, 1, 2])
    collated = default_collate([dataset[index] for index in (4, 0, 1, 2)])
    assert rows is not None
    assert type(rows) is type(collated)
    for row, expected in zip(rows, collated, strict=True):
        assert torch.equal(row, expected)
        assert (row.dtype, row.stride()) == (expected.dtype, expected.stride())
    assert gathered(regression(), [0]) is not None
    assert gathered([1, 2], [0]) is None


def test_a_global_batch_says_that_it_holds_no_data() -> None:
    batch = GlobalBatch(0, 0, (np.arange(2),))
    with pytest.raises(ConfigError, match="loss_fn"):
        _inputs, _targets = batch
    with pytest.raises(ConfigError, match="loss_fn"):
        batch[0]
    with pytest.raises(AttributeError, match=r"no 'to': .*loss_fn"):
        batch.to("cpu")


AHEAD = """
import os, random, numpy, torch, virtualflow as vf
from tests.train.small import make, mlp
from tests.train.test_feed import Noisy, squares
from virtualflow.train import data

data.START_SECONDS = -1.0
vf.seed(0)
trainer = make(mlp(), squares, loader_workers=LOADER_WORKERS)
dataset = Noisy(folder / f"calls-{os.getpid()}", (0.0, 0.0))
for epoch in trainer.epochs(5):
    dataset.scale = 1.0 + epoch
    for batch in trainer.batches(dataset):
        trainer.step(batch)
        pace(trainer)
if trainer.is_lead:
    print(trainer.digest())
"""


def test_bits_survive_resizes_and_kills_while_shards_are_loaded_ahead(backend: LocalBackend, tmp_path: Path) -> None:
    def kill_one(coordinator: Coordinator) -> None:
        os.kill(coordinator.status().workers[-1].pid, signal.SIGKILL)

    alone = Driven(backend, tmp_path / "alone", AHEAD.replace("LOADER_WORKERS", "0")).run(1)
    for loader_workers in ("None", "2"):
        folder = tmp_path / loader_workers
        driven = Driven(backend, folder, AHEAD.replace("LOADER_WORKERS", loader_workers))
        finished = driven.run(2, [(4, to(3)), (12, kill_one), (20, to(1))])
        assert finished.digest == alone.digest
        workers = {int(path.name.rpartition("-")[2]) for path in folder.glob("calls-*")}
        loaders = set().union(*map(processes, folder.glob("calls-*"))) - workers
        assert loaders
        assert not [pid for pid in loaders if runs(pid)]
