"""Several datasets in a step: who comes with whom follows from seed and epoch, and each pass has each example once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import virtualflow as vf
from tests.job.driven import Driven, to
from tests.train.small import make
from virtualflow.backends.local import LocalBackend
from virtualflow.errors import ConfigError
from virtualflow.events import StepDone, read_events
from virtualflow.events.certificate import compare
from virtualflow.streams.zipping import ZippedReader

SEEN: list[tuple[int, list[int]]] = []


def paired(model: Any, batch: Any) -> torch.Tensor:
    one, others = batch
    others = others if isinstance(others, list) else [others]
    for row in range(len(one)):
        SEEN.append((int(one[row]), [int(each[row]) for each in others]))
    rows = torch.stack([one.float(), *(each.float() for each in others)], 1)
    return (model(rows[:, :1].expand(-1, 6) / 100) - rows[:, 1:].mean(1, keepdim=True) / 100).square().mean()


def together(first: int, other: int, each: int, epochs: int) -> list[tuple[int, list[int]]]:
    """What came together, in the order of training; the first step is replayed, and counts once."""
    SEEN.clear()
    trainer = make(loss_fn=paired, loader_workers=0)
    data = vf.zipped(list(range(first)), list(range(100, 100 + other)), each=each)
    for _ in trainer.epochs(epochs):
        for batch in trainer.batches(data):
            trainer.step(batch)
    return SEEN[8:]


@pytest.mark.parametrize(("other", "each"), [(40, 1), (10, 1), (7, 3), (200, 2)])
def test_each_pass_over_each_dataset_has_each_example_once(other: int, each: int) -> None:
    epochs = 3
    pairs = together(40, other, each, epochs)
    for epoch in range(epochs):
        assert Counter(one for one, _ in pairs[40 * epoch : 40 * epoch + 40]) == Counter(range(40))
    used = Counter(number for _, others in pairs for number in others)
    whole, rest = divmod(epochs * 40 * each, other)
    assert set(used.values()) <= {whole, whole + 1}
    assert sum(count == whole + 1 for count in used.values()) == rest or whole == 0
    assert len(used) == min(other, epochs * 40 * each)


def test_others_come_with_an_example_in_another_epoch() -> None:
    pairs = together(40, 40, 1, 2)
    first, second = dict(pairs[:40]), dict(pairs[40:])
    assert sum(first[one] == second[one] for one in range(40)) < 8


def test_several_datasets_have_ratios_of_their_own() -> None:
    data = vf.zipped([1, 2], [3], "ab", each=(2, 1))
    reader = ZippedReader(data, 0)
    assert reader[0][:2] == (1, [3, 3])
    assert {reader[0][2], reader[1][2]} == {"a", "b"}


def test_the_certificate_tells_what_came_along() -> None:
    """All others are alike, so only the ids can tell that other ones came, or more of them."""
    ids = {}
    for other, each in ((10, 1), (10, 2), (11, 1)):
        trainer = make(loss_fn=lambda model, batch: model(batch[0][:, None].expand(-1, 6).float()).square().mean())
        for batch in trainer.steps(2, vf.zipped(list(range(40)), [0] * other, each=each)):
            trainer.step(batch)
        steps = [event for event in read_events(trainer.events_path) if isinstance(event, StepDone)]
        ids[other, each] = tuple(event.ids for event in steps)
    assert len(set(ids.values())) == 3


def test_steps_go_through_the_epochs() -> None:
    SEEN.clear()
    trainer = make(loss_fn=paired, loader_workers=0)
    data = vf.zipped(list(range(40)), list(range(100, 110)))
    for batch in trainer.steps(10, data):
        trainer.step(batch)
    assert SEEN[8:] == together(40, 10, 1, 2)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (([1],), "takes one or more"),
        (([1], []), "length 0"),
        (([1], iter([2])), "list_iterator"),
        (([1], vf.Stream(lambda _: [1], shards=1)), r"list\(stream\)"),
    ],
)
def test_what_can_not_be_zipped_is_refused(arguments: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        vf.zipped(*arguments)
    with pytest.raises(ConfigError, match="each=0"):
        vf.zipped([1], [2], each=0)


TRAIN = """
import virtualflow as vf
from tests.train.small import make, mlp
from tests.train.test_zipped import paired

vf.seed(0)
trainer = make(mlp(), paired)
data = vf.zipped(list(range(40)), list(range(100, 130)), each=2)
for _ in trainer.epochs(4):
    for batch in trainer.batches(data):
        trainer.step(batch)
        pace(trainer)
"""


def test_bits_do_not_depend_on_the_devices(backend: LocalBackend, tmp_path: Path) -> None:
    calm = Driven(backend, tmp_path / "calm", TRAIN).run(1)
    grown = Driven(backend, tmp_path / "grown", TRAIN).run(2, [(7, to(3))])
    assert compare(calm.certificate, grown.certificate).equal
    assert len(calm.steps) == 20
