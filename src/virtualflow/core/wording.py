"""Nouns that depend on a number."""

from __future__ import annotations

from collections.abc import Collection


def counted(number: int, noun: str) -> str:
    """``1 device``, ``2 devices``: for nouns whose plural ends in s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(noun: str, names: Collection[object]) -> str:
    """``stage 3``, ``stages 3, 4``."""
    return f"{noun if len(names) == 1 else f'{noun}s'} {', '.join(map(str, names))}"
