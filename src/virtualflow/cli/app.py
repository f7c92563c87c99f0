"""``vf``: its commands in panels, and how errors are shown."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import typer
from rich.text import Text
from typer.core import TyperGroup

from virtualflow import __version__
from virtualflow.cli.bisect import bisect
from virtualflow.cli.cluster import cluster
from virtualflow.cli.dashboard import dashboard
from virtualflow.cli.defaults import read_defaults
from virtualflow.cli.doctor import doctor
from virtualflow.cli.explain import explain
from virtualflow.cli.help import Command, ScriptCommand
from virtualflow.cli.jobs import clean, logs, resize, status, stop
from virtualflow.cli.join import join
from virtualflow.cli.plot import plot
from virtualflow.cli.port import port
from virtualflow.cli.profile import profile
from virtualflow.cli.queue import cancel, describe, devices, pause, priority, queue, resume, submit
from virtualflow.cli.replay import replay
from virtualflow.cli.run import run
from virtualflow.cli.screen import screen
from virtualflow.cli.selftest import selftest
from virtualflow.cli.simulate import simulate
from virtualflow.cli.solve import solve
from virtualflow.cli.sweep import sweep
from virtualflow.cli.tensorboard import tensorboard
from virtualflow.cli.timeline import timeline
from virtualflow.cli.trace import trace
from virtualflow.cli.verify import verify
from virtualflow.errors import VirtualFlowError
from virtualflow.system.home import home
from virtualflow.system.text import visible

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)

app = typer.Typer(
    name="vf",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train a PyTorch model on any number of devices and get the same bits.",
    epilog="To begin: [bold]vf run --devices 2 train.py[/bold], then [bold]vf status[/bold].",
)
SCRIPT = {"allow_interspersed_args": False}  # the script's own options follow the script and are left alone
PANELS: dict[str, tuple[Callable[..., None] | tuple[str, typer.Typer], ...]] = {
    "Run a job": (run, submit, join, port, explain, doctor, selftest),
    "Look at a job": (status, queue, sweep, describe, logs, timeline, tensorboard, verify, replay, bisect),
    "Change a job": (resize, stop, pause, resume, priority, cancel, clean),
    "Cluster": (("cluster", cluster), devices, dashboard),
    "Mixed devices": (profile, solve, plot),
    "Simulation": (simulate, ("trace", trace)),
}
for panel, commands in PANELS.items():
    for command in commands:
        if isinstance(command, tuple):
            app.add_typer(command[1], name=command[0], rich_help_panel=panel)
        else:
            takes_script = command in (run, profile, submit)
            app.command(
                rich_help_panel=panel,
                context_settings=SCRIPT if takes_script else {},
                cls=ScriptCommand if takes_script else Command,
            )(command)


@app.callback(invoke_without_command=True)
def _options(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        print(__version__)
        raise typer.Exit


def run_command() -> None:
    """Run the command that the command line names. Its errors are messages, not tracebacks."""
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
