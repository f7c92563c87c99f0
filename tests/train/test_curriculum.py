"""A batch size that changes between epochs is a part of the job: the same on any devices, resumed, joined, recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import virtualflow as vf
from tests.job.driven import Driven, to
from tests.train.small import make, regression, train
from virtualflow.backends.local import LocalBackend
from virtualflow.errors import CheckpointError, ConfigError
from virtualflow.events import RunStarted, read_events
from virtualflow.events.certificate import compare

GROWING = {0: 4, 1: 8, 3: 20}


def sizes_of(trainer: vf.Trainer, data: Any, epochs: int = 4) -> list[int]:
    sizes = []
    for _ in trainer.epochs(epochs):
        for batch in trainer.batches(data):
            trainer.step(batch)
            sizes.append(batch.examples)
    return sizes


def test_batches_grow_with_the_epochs() -> None:
    assert sizes_of(make(batch_size=GROWING), regression()) == [4] * 10 + [8] * 5 + [8] * 5 + [20] * 2


def test_a_stream_is_passed_over_once_in_each_epoch_all_the_same() -> None:
    rows = regression()
    stream = vf.Stream(lambda shard: [rows[at] for at in range(10 * shard, 10 * shard + 10)], shards=4, examples=10)
    assert sizes_of(make(batch_size=GROWING), stream) == [4] * 10 + [8] * 5 + [8] * 5 + [20] * 2


def test_a_resumed_job_has_the_batch_size_of_its_epoch(tmp_path: Path) -> None:
    whole = make(batch_size=GROWING)
    train(whole, regression(), epochs=4)
    half = make(batch_size=GROWING)
    for _ in half.epochs(4):
        for batch in half.batches(regression()):
            half.step(batch)
            if half.global_step == 17:
                half.save(tmp_path / "half.pt")
    resumed = make(batch_size=GROWING)
    resumed.load(tmp_path / "half.pt")
    assert sizes_of(resumed, regression()) == [8] * 3 + [20] * 2
    assert resumed.digest() == whole.digest()
    for other in (4, GROWING | {3: 10}, {0: 4, 1: 8}):
        with pytest.raises(CheckpointError, match="later_batch_sizes"):
            make(batch_size=other).load(tmp_path / "half.pt")


def test_it_is_recorded_in_the_certificate() -> None:
    trainer = make(batch_size=GROWING)
    assert trainer.events_path is not None
    (started,) = [event for event in read_events(trainer.events_path) if isinstance(event, RunStarted)]
    assert started.facts["batch_size"] == 4
    assert started.facts["later_batch_sizes"] == {"1": 8, "3": 20}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"batch_size": {1: 8}}, "beginning with epoch 0"),
        ({"batch_size": {}}, "beginning with epoch 0"),
        ({"batch_size": {0: 8, -1: 4}}, "beginning with epoch 0"),
        ({"batch_size": {0: 8, 2: 3}}, "batch_size=3 is below virtual_nodes=4"),
        ({"batch_size": {0: 8, 2: 16}, "virtual_nodes": [4, 4]}, "Use the number of virtual nodes"),
    ],
)
def test_a_curriculum_that_can_not_be_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        make(**options)


def test_where_there_are_no_epochs_it_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.steps has no epochs"):
        next(make(batch_size=GROWING).steps(3, regression()))
    with pytest.raises(ConfigError, match="a DataLoader has one batch size"):
        train(make(batch_size=GROWING), DataLoader(regression(), 4))


TRAIN = """
import virtualflow as vf
from tests.train.small import make, mlp, regression

vf.seed(0)
trainer = make(mlp(), batch_size={0: 4, 1: 8, 3: 20})
for _ in trainer.epochs(5):
    for batch in trainer.batches(regression()):
        trainer.step(batch)
        pace(trainer)
"""


def test_bits_do_not_depend_on_the_devices_nor_on_when_they_come(backend: LocalBackend, tmp_path: Path) -> None:
    calm = Driven(backend, tmp_path / "calm", TRAIN).run(1)
    grown = Driven(backend, tmp_path / "grown", TRAIN).run(1, [(12, to(3)), (17, to(2))])
    assert compare(calm.certificate, grown.certificate).equal
    assert [step.examples for step in grown.steps] == [4] * 10 + [8] * 10 + [20] * 4
    assert len(grown.changes) == 2
