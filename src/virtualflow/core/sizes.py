"""Sizes of memory as people write them: ``512M``, ``16GB``, ``1.5 GiB``. All units are powers of 1024."""

from __future__ import annotations

import math
import re

from virtualflow.errors import ConfigError

MOST = 1 << 60
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_size(text: str, what: str) -> int:
    """The bytes of *text*; *what* it is for is part of the error."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)i?B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ConfigError(f"{what} {text}: expected a size such as 512M or 16GB")
    size = int(float(match[1]) * UNITS[match[2].upper()])
    if size > MOST:
        raise ConfigError(f"{what} {text}: that is more than any device has")
    return size


def size_text(size: float) -> str:
    """Rounded up: ``14.2 GB``; infinity is ``no limit``."""
    if math.isinf(size):
        return "no limit"
    value, name = float(size), ""
    for name in UNITS:
        if value < 1000 or name == "T":
            break
        value /= 1024
    number = f"{math.ceil(round(10 * value, 3)) / 10:.1f}".removesuffix(".0")
    return f"{number} {name}B" if name else f"{number} bytes"
