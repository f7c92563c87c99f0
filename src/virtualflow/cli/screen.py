"""Where commands print. Names, paths and messages of others are shown as text, even if they look like markup.

They may also hold escape sequences that a terminal obeys, which could clear it, rename it, or hide other text. Those
are shown as Python writes them. ``vf logs`` and a job's own output are passed through, as ``cat`` does.
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
    """A console without markup; colours come with ``Text`` and ``style=``."""
    return _Screen(markup=False, emoji=False, **settings)


def print_line(text: str, file: TextIO | None = None) -> None:
    """Print text from outside, with escape sequences made visible."""
    print(visible(text), file=file or sys.stdout, flush=True)
