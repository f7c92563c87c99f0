"""Where verbs print. Text is shown as it is: names, paths and messages of others may hold what looks like markup.

They may also hold what a terminal obeys: escape sequences that clear it, rename it, or hide what comes before them.
Those are shown as Python writes them. ``vf logs`` and a job's own output are the exception, as with ``cat``.
"""

from __future__ import annotations

import sys
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from virtualflow.system.text import visible


class _Screen(Console):
    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)


def screen(**settings: Any) -> Console:
    """A console on which square brackets are square brackets; colours come with ``Text`` and ``style=``."""
    return _Screen(markup=False, emoji=False, **settings)


def say(text: str, file: TextIO | None = None) -> None:
    """Print what others have written."""
    print(visible(text), file=file or sys.stdout, flush=True)
