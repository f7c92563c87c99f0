"""Files that verbs write: looked at before the work is done, and never the end in a traceback."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from virtualflow.errors import ConfigError


def check_file(path: Path, option: str = "-o") -> None:
    """Refuse a file that can't be written, before the work for it begins."""
    if path.is_dir():
        raise ConfigError(f"{option} {path} is a folder: name a file in it")
    parent = path.absolute().parent
    if not parent.is_dir():
        raise ConfigError(f"{option} {path}: there is no folder {parent}. Make it first, or name another one.")
    if not os.access(path if path.exists() else parent, os.W_OK):
        raise ConfigError(f"{option} {path} can't be written: no permission. Name a file in a folder of yours.")


def check_folder(path: Path, option: str = "-o") -> None:
    """Refuse a folder that can't be made or written to, before the work for it begins."""
    whole = path.absolute()
    nearest = next(each for each in (whole, *whole.parents) if each.exists())
    if not nearest.is_dir():
        raise ConfigError(f"{option} {path}: {nearest} is a file, where a folder is needed. Name another one.")
    if not os.access(nearest, os.W_OK):
        raise ConfigError(f"{option} {path} can't be made: no permission in {nearest}. Name a folder of yours.")


@contextmanager
def writing(path: Path, option: str = "-o") -> Iterator[None]:
    """Say in one line what went wrong with *path*: a full disk, or a kind of picture that nobody can draw."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{option} {path} can't be written: {error.strerror or error}") from error
    except ValueError as error:  # matplotlib's word for a suffix that it does not know
        raise ConfigError(f"{option} {path} can't be written: {error}") from error
