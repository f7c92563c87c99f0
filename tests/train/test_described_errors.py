"""An error as plain values: made again, it is of the same class and says the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from virtualflow.train.shared_errors import LocalError, described, device_of, place_notes, raise_first, remade


class CodedError(Exception):
    """One whose arguments are not those of its ``__init__``."""

    def __init__(self, code: int, *, where: str) -> None:
        super().__init__(f"{code} at {where}")
        self.code = code


class UnsendableError(Exception):
    def __str__(self) -> str:
        return f"kept {self.args[0]['value']}"


def sent(error: Exception) -> Exception:
    return remade(json.loads(json.dumps(described(error))))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        KeyError("name"),
        OSError(2, "No such file", "a.txt"),
        CodedError(3, where="b"),
        StopIteration(),
    ],
)
def test_an_error_arrives_with_its_class_and_text(error: Exception) -> None:
    again = sent(error)
    assert type(again) is type(error)
    assert str(again) == str(error)


def test_plain_attributes_arrive_too() -> None:
    again: Any = sent(CodedError(3, where="b"))
    assert again.code == 3


def test_an_error_with_arguments_that_cannot_travel_says_the_same_and_is_caught_by_its_class() -> None:
    again = sent(UnsendableError({"value": object}))
    assert isinstance(again, UnsendableError)
    assert str(again) == f"kept {object}"


def test_of_a_class_that_is_not_here_the_nearest_base_is_made() -> None:
    class UnknownError(LookupError):
        """Nobody else can import it."""

    again = sent(UnknownError("gone"))
    assert type(again) is LookupError
    assert str(again) == "gone"


def test_of_several_the_first_in_order_is_raised_on_all() -> None:
    late, early = LocalError(ValueError("late"), "step 1", "0", 5), LocalError(KeyError("early"), "step 1", "1", 2)
    everyone = [late.description, None, early.description]
    for mine in (late, early, None):
        with pytest.raises(KeyError, match="early") as caught:
            raise_first(everyone, mine)
        assert device_of(caught.value) == "1"
        assert place_notes(caught.value)[0].startswith("This was in step 1, on device 1.")


def test_without_errors_nothing_is_raised() -> None:
    raise_first([None, None], None)
