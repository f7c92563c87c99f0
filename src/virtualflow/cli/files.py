"""Files that commands write: checked before the work begins, and never a traceback."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from virtualflow.errors import ConfigError


def check_file(path: Path, option: str = "-o") -> None:
    """Refuse a file that can't be written, before the work begins."""
    if path.is_dir():
        raise ConfigError(f"{option} {path} is a folder. Name a file in it.")
    parent = path.absolute().parent
    if not parent.is_dir():
        raise ConfigError(f"{option} {path}: the folder {parent} does not exist. Create it, or choose another one.")
    if not os.access(path if path.exists() else parent, os.W_OK):
        raise ConfigError(
            f"{option} {path} can't be written: permission denied. Choose a folder that you can write to."
        )


def check_folder(path: Path, option: str = "-o") -> None:
    """Refuse a folder that can't be created or written to, before the work begins."""
    whole = path.absolute()
    nearest = next(place for place in (whole, *whole.parents) if place.exists())
    if not nearest.is_dir():
        raise ConfigError(f"{option} {path}: {nearest} is a file, not a folder. Choose another path.")
    if not os.access(nearest, os.W_OK):
        raise ConfigError(
            f"{option} {path} can't be created: permission denied in {nearest}. Choose a folder that you can write to."
        )


@contextmanager
def writing(path: Path, option: str = "-o") -> Iterator[None]:
    """Turn a failure to write *path* into one line: a full disk, or a picture format that matplotlib does not know."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{option} {path} can't be written: {error.strerror or error}") from error
    except ValueError as error:  # matplotlib, for an unknown suffix
        raise ConfigError(f"{option} {path} can't be written: {error}") from error
