"""Defaults of options from ``vf.toml``, in this folder or in ``$VF_HOME``.

A table for each command, with its options by their long names::

    [run]
    devices = 2
    checkpoint-every = 100

    [cluster.up]
    policy = "wfs"

What the command line says counts first, then this folder's file, then the one in ``$VF_HOME``.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from typer.core import TyperGroup, TyperOption

from virtualflow.errors import ConfigError
from virtualflow.system.home import home

FILE = "vf.toml"


def read_defaults(commands: TyperGroup) -> dict[str, Any]:
    """The defaults for *commands*, as typer takes them. Raises ConfigError if a file names something else."""
    merged: dict[str, Any] = {}
    for file in default_files():
        _merge(merged, _checked(commands, _parsed(file), file, ""))
    return merged


def default_files() -> list[Path]:
    """Those that there are; the later one counts."""
    return [file for file in (home() / FILE, Path(FILE)) if os.path.isfile(file)]


def _parsed(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except (ValueError, OSError) as error:  # not TOML, not text, or not ours to read
        raise ConfigError(f"{file} can't be read: {error}") from error


def _checked(group: TyperGroup, table: dict[str, Any], file: Path, before: str) -> dict[str, Any]:
    """*table* by the names that typer uses."""
    checked: dict[str, Any] = {}
    for name, values in table.items():
        command, title = group.commands.get(name), f"{before}{name}"
        if command is None or not isinstance(values, dict):
            known = ", ".join(f"[{before}{command}]" for command in sorted(group.commands))
            raise ConfigError(f"{file}: {title!r} is not a table for a command of vf. There are {known}.")
        if isinstance(command, TyperGroup):
            checked[name] = _checked(command, values, file, f"{title}.")
        else:
            checked[name] = {_option(command, key, file, title): value for key, value in values.items()}
    return checked


def _option(command: Any, key: str, file: Path, title: str) -> str:
    options = {
        text.removeprefix("--"): parameter.name or ""
        for parameter in command.params
        if isinstance(parameter, TyperOption)
        for text in parameter.opts
        if text.startswith("--") and text != "--help"
    }
    if key not in options:
        known = ", ".join(sorted(options))
        raise ConfigError(f"{file}: `vf {title.replace('.', ' ')}` has no option --{key}. It has: {known}.")
    return options[key]


def _merge(into: dict[str, Any], more: dict[str, Any]) -> None:
    for name, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            _merge(into[name], value)
        else:
            into[name] = value
