"""Data as people have them: DataLoaders, and steps without epochs."""

from __future__ import annotations

import random
import resource
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import virtualflow as vf
from tests.train.small import classes, cross, make, mlp, regression, train
from virtualflow.errors import ConfigError, LossError

DATA = regression()


class Lengths(Sampler[list[int]]):
    """Batches of unequal size, as a sampler by length makes them."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        order = np.random.default_rng(self.epoch).permutation(40).tolist()
        sizes = [8, 3, 7, 8, 1, 8, 5]
        for size in sizes:
            yield [order.pop() for _ in range(size)]

    def __len__(self) -> int:
        return 7


LOADERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "in order": lambda: DataLoader(DATA, 8),
    "shuffle": lambda: DataLoader(DATA, 8, shuffle=True),
    "generator": lambda: DataLoader(DATA, 8, shuffle=True, generator=torch.Generator().manual_seed(3)),
    "weighted": lambda: DataLoader(DATA, 8, sampler=WeightedRandomSampler([1.0] * 39 + [9.0], 24)),
    "subset": lambda: DataLoader(DATA, 8, sampler=SubsetRandomSampler(range(7, 33))),
    "drop_last": lambda: DataLoader(DATA, 8, sampler=SubsetRandomSampler(range(30)), drop_last=True),
    "batch sampler": lambda: DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 8, drop_last=False)),
    "by length": lambda: DataLoader(DATA, batch_sampler=Lengths()),
}


def seen_by(trainer: vf.Trainer, loader: Any, epochs: int = 2) -> list[list[int]]:
    batches = []
    for _ in trainer.epochs(epochs):
        for batch in trainer.batches(loader):
            batches.append(np.concatenate(batch.shards).tolist())
            trainer.step(batch)
    return batches


@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_gives_the_same_batches_whatever_was_drawn_before(name: str) -> None:
    torch.manual_seed(1)
    first, loader = make(), LOADERS[name]()
    batches = seen_by(first, loader)
    torch.rand(77)
    second = make()
    assert seen_by(second, LOADERS[name]()) == batches
    assert second.digest() == first.digest()
    if name not in ("in order",):
        assert batches[: len(batches) // 2] != batches[len(batches) // 2 :]


def test_a_resumed_job_finds_the_loaders_batches(tmp_path: Any) -> None:
    whole = make()
    batches = seen_by(whole, LOADERS["shuffle"]())
    half = make()
    for _ in half.epochs(2):
        for batch in half.batches(LOADERS["shuffle"]()):
            half.step(batch)
            if half.global_step == 7:
                half.save(tmp_path / "half.pt")
    resumed = make()
    resumed.load(tmp_path / "half.pt")
    assert seen_by(resumed, LOADERS["shuffle"]()) == batches[7:]
    assert resumed.digest() == whole.digest()


def test_the_loaders_collate_function_counts() -> None:
    def doubled(examples: list[Any]) -> list[torch.Tensor]:
        return [2 * torch.stack([one for one, _ in examples]), torch.stack([other for _, other in examples])]

    twice = TensorDataset(2 * DATA.tensors[0], DATA.tensors[1])
    collated, plain = make(), make()
    seen_by(collated, DataLoader(DATA, 8, collate_fn=doubled))
    seen_by(plain, DataLoader(twice, 8))
    assert collated.digest() == plain.digest()


def test_a_loader_with_processes_gives_the_same_bits() -> None:
    alone, helped = make(), make()
    seen_by(alone, DataLoader(DATA, 8, shuffle=True))
    seen_by(helped, DataLoader(DATA, 8, shuffle=True, num_workers=2, pin_memory=True))
    assert alone.digest() == helped.digest()


class Counting(Sampler[int]):
    """Goes on where it stopped."""

    def __init__(self) -> None:
        self.calls = 0

    def __iter__(self) -> Iterator[int]:
        self.calls += 1
        return iter(np.random.default_rng(self.calls).permutation(40).tolist())

    def __len__(self) -> int:
        return 40


class OwnGenerator(Sampler[int]):
    def __init__(self) -> None:
        self.rng = random.Random(3)

    def __iter__(self) -> Iterator[int]:
        return iter(self.rng.sample(range(40), 40))

    def __len__(self) -> int:
        return 40


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


def nothing(_: int) -> None:
    pass


REFUSED: dict[str, tuple[Callable[[], DataLoader[Any]], str]] = {
    "stateful": (lambda: DataLoader(DATA, 8, sampler=Counting()), "Counting gives other batches .* set_epoch"),
    "own generator": (lambda: DataLoader(DATA, 8, sampler=OwnGenerator()), r"generator of its own \(.rng\)"),
    "distributed": (
        lambda: DataLoader(DATA, 8, sampler=DistributedSampler(DATA, num_replicas=2, rank=0)),
        "DistributedSampler.*Leave it out",
    ),
    "no batch": (lambda: DataLoader(DATA, batch_size=None), r"batch_size=None.*trainer.steps"),
    "iterable": (lambda: DataLoader(Endless(), 8), "IterableDataset.*vf.Stream"),
    "another size": (lambda: DataLoader(DATA, 16), "batch_size=16 and the Trainer batch_size=8"),
    "too long": (
        lambda: DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 9, drop_last=False)),
        "a batch of 9 examples.*batch_size=9",
    ),
    "init function": (lambda: DataLoader(DATA, 8, num_workers=1, worker_init_fn=nothing), "worker_init_fn"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_not_be_the_same_everywhere_is_refused_before_it_trains(name: str) -> None:
    loader, reason = REFUSED[name]
    trainer = make()
    with pytest.raises(ConfigError, match=reason):
        seen_by(trainer, loader())
    assert trainer.global_step == 0


@pytest.mark.parametrize("option", [{"collate_fn": list}, {"sampler": lambda epoch: [epoch]}, {"drop_last": True}])
def test_what_the_loader_says_is_not_said_twice(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(option))}= out"):
        seen_by(make(**option), DataLoader(DATA, 8))


def test_evaluate_and_predict_take_a_loader() -> None:
    trainer = make(mlp(out=3), cross)
    data = classes()

    def right(model: Any, batch: Any) -> tuple[torch.Tensor, int]:
        return (model(batch[0]).argmax(1) == batch[1]).sum(), len(batch[1])

    assert trainer.evaluate(DataLoader(data, 16), right) == trainer.evaluate(data, right)
    assert torch.equal(trainer.predict(DataLoader(data, 16)), trainer.predict(data))
    with pytest.raises(ConfigError, match="shuffle=False"):
        trainer.predict(DataLoader(data, 16, shuffle=True))


def stepped(trainer: vf.Trainer, count: int, data: Any) -> list[float]:
    return [trainer.step(batch) for batch in trainer.steps(count, data)]


def draw(size: int) -> list[torch.Tensor]:
    inputs = torch.randn(size, 6)
    return [inputs, inputs.sum(1, keepdim=True) + random.random() + float(np.random.rand())]


def test_steps_over_a_dataset_train_and_end() -> None:
    trainer = make()
    losses = stepped(trainer, 23, DATA)
    assert len(losses) == trainer.global_step == 23
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("data", [DATA, draw, DataLoader(DATA, 8, shuffle=True)], ids=["dataset", "function", "loader"])
def test_a_resumed_job_goes_on_in_its_steps(data: Any, tmp_path: Any) -> None:
    whole = make()
    losses = stepped(whole, 12, data)
    half = make()
    for batch in half.steps(12, data):
        half.step(batch)
        if half.global_step == 7:
            half.save(tmp_path / "half.pt")
            break
    resumed = make()
    resumed.load(tmp_path / "half.pt")
    assert stepped(resumed, 12, data) == losses[7:]
    assert resumed.digest() == whole.digest()


def test_a_function_draws_anew_for_every_step_and_virtual_node() -> None:
    drawn: list[float] = []

    def noted(size: int) -> list[torch.Tensor]:
        batch = draw(size)
        drawn.append(float(batch[0][0, 0]))
        return batch

    trainer = make(loader_workers=0)
    stepped(trainer, 3, noted)
    assert len(set(drawn)) == 3 * 4  # the first step is replayed, with what it had


def test_an_augmentation_differs_from_pass_to_pass() -> None:
    seen: list[tuple[int, float]] = []

    class Noisy:
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
            noise = torch.rand(6)
            seen.append((index, float(noise[0])))
            return noise, noise.sum(0, keepdim=True)

    stepped(make(loader_workers=0), 3, Noisy())
    assert len(set(seen)) == 3 * 8


class Many:
    """As many examples as nanoGPT's 600,000 steps of 480 have."""

    def __len__(self) -> int:
        return 288_000_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.full((6,), index / len(self))
        return inputs, inputs.sum(0, keepdim=True)


@pytest.mark.parametrize("data", [Many(), draw], ids=["dataset", "function"])
def test_the_order_of_many_steps_is_never_in_memory(data: Any) -> None:
    trainer = make(batch_size=480, virtual_nodes=4, loader_workers=0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    batches = trainer.steps(600_000, data)
    losses = [trainer.step(next(batches)) for _ in range(2)]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert all(np.isfinite(losses))
    assert grown < 100_000  # of 1 kB; the order alone would be 2,304 MB
    batches.close()


def test_steps_take_the_place_of_epochs() -> None:
    trainer = make()
    with pytest.raises(ConfigError, match="at least 1"):
        stepped(trainer, 0, DATA)
    with pytest.raises(ConfigError, match="function that draws"):
        stepped(make(drop_last=True), 2, draw)


def test_steps_are_the_one_loop_of_their_trainer() -> None:
    twice = make()
    stepped(twice, 2, DATA)
    with pytest.raises(ConfigError, match="one loop"):
        stepped(twice, 2, DATA)
    within = make()
    for _ in within.epochs(1):
        with pytest.raises(ConfigError, match="one loop"):
            stepped(within, 2, DATA)


def test_a_loader_and_its_dataset_differ_only_in_the_order() -> None:
    ordered = make(sampler=lambda _: range(40))
    train(ordered, DATA, epochs=2)
    loader = make()
    seen_by(loader, DataLoader(DATA, 8))
    assert loader.digest() == ordered.digest()


def mean_loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).mean()


def by_steps(batch_fn: Any, loss_fn: Any = mean_loss) -> float:
    """The loss of one step of 4 virtual nodes, with 2 examples each."""
    vf.seed(0)
    model = torch.nn.Linear(3, 1)
    trainer = vf.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_fn, batch_size=8, virtual_nodes=4)
    return next(float(trainer.step(batch)) for batch in trainer.steps(1, batch_fn))


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_a_batch_fn_that_draws_another_number_of_examples_is_refused(rows: int) -> None:
    with pytest.raises(LossError, match=rf"batch_fn returned {rows} examples, and was asked for 2"):
        by_steps(lambda size: {"x": torch.randn(rows, 3), "of": [torch.zeros(rows)]}, lambda m, b: m(b["x"]).mean())


def test_a_batch_fn_may_return_rows_that_are_no_examples_if_it_says_their_weight() -> None:
    by_steps(lambda size: torch.randn(7, 3), lambda model, batch: (model(batch).sum(), len(batch)))
    by_steps(lambda size: torch.randn(5, size, 3))  # time comes first
    by_steps(lambda size: (torch.randn(5, 3), torch.zeros(size)), lambda model, batch: model(batch[0]).mean())
    by_steps(lambda size: size, lambda model, batch: model(torch.ones(batch, 3)).mean())


def test_a_collate_fn_that_leaves_examples_out_is_warned_about() -> None:
    def train(drop: int, loss_fn: Any = mean_loss) -> None:
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options = {"batch_size": 8, "virtual_nodes": 2, "collate_fn": lambda rows: torch.stack(rows)[drop:]}
        trainer = vf.Trainer(model, optimizer, loss_fn, **options)
        for _ in trainer.epochs(1):
            for batch in trainer.batches(list(torch.randn(8, 3))):
                trainer.step(batch)

    train(0)
    train(1, lambda model, batch: (model(batch).sum(), len(batch)))
    with pytest.warns(UserWarning, match="3 rows of 4 examples"):
        train(1)
