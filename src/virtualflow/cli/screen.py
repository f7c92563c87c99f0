"""Where verbs print. Text is shown as it is: names, paths and messages of others may hold what looks like markup.

They may also hold what a terminal obeys: escape sequences that clear it, rename it, or hide what comes before them.
Those are shown as Python writes them. ``vf logs`` and a job's own output are the exception, as with ``cat``.
"""

from __future__ import annotations

import re
import sys
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

# Controls, what turns the direction of writing, other ends of lines, and bytes that are no text.
_ORDERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class _Screen(Console):
    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)


def screen(**settings: Any) -> Console:
    """A console on which square brackets are square brackets; colours come with ``Text`` and ``style=``."""
    return _Screen(markup=False, emoji=False, **settings)


def visible(text: str) -> str:
    """*text* with what a terminal would obey made readable."""
    return _ORDERS.sub(_shown, text.replace("\r\n", "\n"))


def say(text: str, file: TextIO | None = None) -> None:
    """Print what others have written."""
    print(visible(text), file=file or sys.stdout, flush=True)


def _shown(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"
