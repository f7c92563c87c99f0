"""Nouns follow the number of what they name."""

from __future__ import annotations

from virtualflow.core.wording import counted, listed


def test_one_is_singular_and_all_else_plural() -> None:
    assert [counted(number, "device") for number in (0, 1, 2, 1200)] == [
        "0 devices", "1 device", "2 devices", "1,200 devices",
    ]  # fmt: skip


def test_a_list_is_named_by_how_many_it_has() -> None:
    assert (listed("stage", [3]), listed("stage", (3, 4))) == ("stage 3", "stages 3, 4")
