"""Text of others, shown so that a terminal obeys none of it."""

from __future__ import annotations

import re

# Controls, what turns the direction of writing, other ends of lines, and bytes that are no text.
_ORDERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """*text* with what a terminal would obey made readable."""
    return _ORDERS.sub(_shown, text.replace("\r\n", "\n"))


def _shown(character: re.Match[str]) -> str:
    number = ord(character[0])
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"
