"""A script's values, saved and put back with their types, in place where that can be."""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import io
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from virtualflow.errors import ConfigError
from virtualflow.train.plain import assigned, decoded, encoded


class Phase(enum.Enum):
    WARM = 1
    HOT = 2


class Pair(NamedTuple):
    one: int
    other: str


@dataclasses.dataclass
class Progress:
    best: float
    history: list[float]


VALUES: list[Any] = [
    *(1, 2.5, 1j, "text", b"bytes", None, True),
    Phase.HOT,
    Pair(1, "x"),
    Progress(0.5, [1.0, 2.0]),
    np.float32(1.5),
    {"a": [1, (2, {3})], 7: frozenset({"x"})},
    collections.Counter("abracadabra"),
    collections.OrderedDict(b=1, a=2),
    collections.defaultdict(list, {"x": [1]}),
    collections.deque([1, 2, 3], maxlen=3),
]


def saved(value: Any) -> Any:
    """Written and read as a checkpoint is: without code."""
    file = io.BytesIO()
    torch.save(encoded(value, "here"), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_comes_back_with_its_type(value: Any) -> None:
    back = decoded(saved(value))
    assert type(back) is type(value)
    assert back == value
    assert getattr(back, "maxlen", None) == getattr(value, "maxlen", None)
    assert getattr(back, "default_factory", None) is getattr(value, "default_factory", None)


def test_arrays_and_tensors_come_back_as_they_were() -> None:
    array = decoded(saved(np.arange(6, dtype=np.int16).reshape(2, 3)))
    assert (array.dtype, array.tolist()) == (np.int16, [[0, 1, 2], [3, 4, 5]])
    assert torch.equal(decoded(saved(torch.ones(2, dtype=torch.bfloat16))), torch.ones(2, dtype=torch.bfloat16))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (object(), "here is a object"),
        ({"a": [1, open]}, r"here\['a'\]\[1\] is a builtin_function_or_method"),
        (collections.defaultdict(lambda: 1), "here is a defaultdict of <lambda>"),
    ],
)
def test_what_can_not_be_saved_is_named_with_its_place(value: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        encoded(value, "here")


def test_a_class_that_the_script_has_not_defined_is_named() -> None:
    with pytest.raises(ConfigError, match="the state holds a Missing"):
        decoded(("of type", "enum", "tests.train.test_plain:Missing", "WARM"))


@pytest.mark.parametrize(
    ("held", "value"),
    [
        ([1, [2], 3], [4, [5]]),
        ({"a": [1]}, {"b": 2, "a": [3]}),
        ({1, 2}, {3}),
        (collections.deque([1], maxlen=2), collections.deque([2, 3], maxlen=2)),
        (Progress(1.0, [1.0]), Progress(2.0, [])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_is_put_back_in_place(held: Any, value: Any) -> None:
    assert assigned(held, saved(value), set()) is held
    assert held == value


def test_tuples_of_the_script_are_put_back_over_others() -> None:
    log: list[Any] = [(1, 2.0), (2, {"loss": 1.0}), ()]
    held = copy.deepcopy(log)
    assert assigned(held, encoded([*log, (3,)], "log"), set()) is held
    assert held == [*log, (3,)]


def test_inner_lists_and_tensors_keep_the_names_that_the_script_has_for_them() -> None:
    inner, tensor = [1], torch.zeros(2)
    assigned({"inner": inner, "tensor": tensor}, saved({"inner": [9], "tensor": torch.ones(2)}), set())
    assert inner == [9]
    assert tensor.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("other", [torch.ones(3), torch.ones(2, dtype=torch.float64)])
def test_a_tensor_of_another_form_takes_the_place_of_the_old_one(other: torch.Tensor) -> None:
    tensor = torch.zeros(2)
    back = assigned(tensor, saved(other), set())
    assert torch.equal(back, other)
    assert tensor.tolist() == [0.0, 0.0]


def test_what_stands_in_two_places_is_written_through_the_first_only() -> None:
    shared = [0]
    one, other = assigned([shared, shared], saved([[1], [2]]), set())
    assert (one, other) == ([1], [2])
    assert one is shared
