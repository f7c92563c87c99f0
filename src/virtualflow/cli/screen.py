"""Where verbs print. Text is shown as it is: names, paths and messages of others may hold what looks like markup."""

from __future__ import annotations

from typing import Any

from rich.console import Console


def screen(**settings: Any) -> Console:
    """A console on which square brackets are square brackets; colours come with ``Text`` and ``style=``."""
    return Console(markup=False, emoji=False, **settings)
