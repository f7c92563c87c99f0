"""Runs a command of ``vf``, and shows errors as messages."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import NoReturn

import typer
from rich.text import Text
from typer.core import TyperGroup

from virtualflow.cli.defaults import read_defaults
from virtualflow.cli.screen import screen
from virtualflow.errors import VirtualFlowError
from virtualflow.system.home import home
from virtualflow.system.text import visible

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


def run_command(app: typer.Typer) -> None:
    """Run the command of *app* that the command line names. Its errors are messages, not tracebacks."""
    try:
        commands = typer.main.get_command(app)
        assert isinstance(commands, TyperGroup)
        commands(prog_name="vf", default_map=read_defaults(commands))  # under ``python -m virtualflow``, too
    except VirtualFlowError as error:
        _refuse(str(error))
    except BrokenPipeError:  # the reader of the output has closed it, as ``head`` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.filename is None:
            _refuse(f"{error.strerror or error}.{_advice(str(home())) if error.errno in NO_ROOM else ''}")
        _refuse(f"{error.filename}: {error.strerror}.{_advice(str(error.filename))}")


def _refuse(text: str) -> NoReturn:
    message = Text.assemble(("error:", "bold red"), f" {visible(text)}")
    screen(stderr=True).print(message, highlight=False, soft_wrap=True)
    sys.exit(2)


def _advice(filename: str) -> str:
    if not Path(filename).is_relative_to(home()):
        return ""
    return f" Jobs keep their files there. Set VF_HOME to a folder that you can write to; it is {home()} now."
