"""Which datasets another process may load, and what counts as a change."""

from __future__ import annotations

import functools
import random
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from virtualflow.train.footprint import Footprint
from virtualflow.train.reach import NotPlainError

LEVEL = 1
CACHE: dict[int, int] = {}
COUNT = 0


class Plain(Dataset[Any]):
    """What a dataset may consist of."""

    def __init__(self) -> None:
        self.files = [(f"/images/{number}.png", number % 10) for number in range(5_000)]
        self.images = np.zeros((4, 8, 8), dtype=np.uint8)
        self.table = {"mean": torch.zeros(3), "root": Path("/data")}
        self.transform = functools.partial(crop, size=4)
        self.parts = ConcatDataset([Subset(TensorDataset(torch.zeros(4, 2)), [1, 2])])
        self.difficulty = 0.5

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.images[index]) * LEVEL


def crop(image: Any, size: int) -> Any:
    start = random.randrange(size) + int(np.random.rand() + torch.rand(()))
    return image[start : start + size]


def remembering(index: int) -> int:
    return CACHE.setdefault(index, index)


def counting(index: int) -> int:
    global COUNT
    COUNT += 1
    return index


def importing(index: int) -> int:
    import sqlite3

    return index + sqlite3.threadsafety


@functools.lru_cache
def cached(index: int) -> int:
    return index


def test_plain_data_and_ordinary_code_may_be_loaded_elsewhere() -> None:
    assert Footprint({"the dataset": Plain()}, strict=True).change(everything=True) is None


@pytest.mark.parametrize(
    "held",
    [
        lambda: tempfile.TemporaryFile(),  # noqa: SIM115
        lambda: threading.Lock(),
        lambda: threading.Thread(),
        lambda: torch.Generator(),
        lambda: np.random.default_rng(0),
        lambda: random.Random(0),
        lambda: iter([1, 2]),
        lambda: (number for number in (1, 2)),
        lambda: torch.zeros(2).share_memory_(),
        lambda: counting,
        lambda: importing,
        lambda: cached,
        lambda: threading,
    ],
)
def test_what_two_processes_would_share_or_lose_is_not_plain(held: Callable[[], Any]) -> None:
    thing = held()
    assert Footprint({"the dataset": SimpleNamespace(deep=[{"in": None}])}, strict=True)
    with pytest.raises(NotPlainError):
        Footprint({"the dataset": SimpleNamespace(deep=[{"in": thing}])}, strict=True)
    Footprint({"the dataset": SimpleNamespace(deep=[{"in": thing}])}, strict=False)
    if hasattr(thing, "close"):
        thing.close()


def test_the_number_of_an_open_file_is_not_plain() -> None:
    with tempfile.TemporaryFile() as file:
        held = SimpleNamespace(descriptor=file.fileno())
        with pytest.raises(NotPlainError, match="position"):
            Footprint({"the dataset": held}, strict=True)


def _rebind(data: Plain) -> None:
    data.difficulty = 0.75


def _deep(data: Plain) -> None:
    data.transform.keywords["size"] = 2


def _tensor(data: Plain) -> None:
    data.table["mean"].add_(1)


def _array(data: Plain) -> None:
    data.images[2, 3, 3] = 7


def _long_list(data: Plain) -> None:
    data.files[2_500] = ("/other.png", 0)


def _added(data: Plain) -> None:
    data.more = 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("alter", "name"),
    [
        (_rebind, "the dataset.difficulty"),
        (_added, "the dataset.more"),
        (_deep, "the dataset.transform"),
        (_tensor, "the dataset.table['mean']"),
        (_array, "the dataset.images"),
        (_long_list, "the dataset.files"),
    ],
)
def test_a_change_anywhere_is_found_and_named(alter: Callable[[Plain], None], name: str) -> None:
    data = Plain()
    footprint = Footprint({"the dataset": data}, strict=True)
    alter(data)
    assert footprint.change(everything=True) == name


def test_a_global_that_the_code_reads_belongs_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    footprint = Footprint({"the dataset": Plain()}, strict=True)
    monkeypatch.setitem(globals(), "LEVEL", 2)
    assert footprint.change() == "globals of Plain.__getitem__.LEVEL"
    footprint = Footprint({"the dataset": remembering}, strict=True)
    remembering(3)
    assert footprint.change() == "CACHE"


def test_setting_the_same_value_again_is_no_change() -> None:
    data = Plain()
    footprint = Footprint({"the dataset": data}, strict=True)
    data.difficulty = float("0.5")
    assert footprint.change(everything=True) is None
