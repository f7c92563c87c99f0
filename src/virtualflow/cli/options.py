"""Options that several verbs read."""

from __future__ import annotations

from virtualflow.errors import ConfigError


def device_names(text: str) -> tuple[str, ...]:
    """The names of ``--devices N``: 0 to N - 1."""
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"--devices {text}: expected how many devices, a number from 1 on")
    return tuple(str(number) for number in range(int(text)))


def numbers(text: str, option: str) -> list[int]:
    """The whole numbers of a list such as ``0,1,1,0``."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} {text}: expected whole numbers with commas between them") from None
