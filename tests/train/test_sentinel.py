"""What a sentinel can't watch is refused by name, before anything is trained."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

import virtualflow as vf
from tests.train.small import make, mlp, regression, train
from virtualflow.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"reduction": "fast"}, 'reduction="fast"'),
        ({"sharding": "state"}, 'sharding="state"'),
    ],
)
def test_what_a_sentinel_can_not_watch_is_refused(options: dict[str, Any], reason: str) -> None:
    vf.seed(0)
    with pytest.raises(ConfigError, match="a sentinel can't watch this job") as error:
        make(mlp(), sentinel="1/16", **options)
    assert reason in str(error.value)


@pytest.mark.parametrize("rate", ["often", 2, "-1/2"])
def test_a_rate_that_is_none_is_refused(rate: Any) -> None:
    vf.seed(0)
    with pytest.raises(ConfigError, match="expected a part of the batch"):
        make(mlp(), sentinel=rate)


def test_on_one_device_it_says_once_that_nothing_is_compared_and_the_bits_are_the_same() -> None:
    digests = set()
    for rate, warned in ((0, contextlib.nullcontext([])), (1, pytest.warns(UserWarning, match="watches nothing"))):
        vf.seed(0)
        trainer = make(mlp(), sentinel=rate)
        with warned as said:
            train(trainer, regression())
        assert len(said) == rate
        digests.add(trainer.digest())
    assert len(digests) == 1
