"""``vf``: the verbs, and what becomes of errors."""

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
from virtualflow.cli.cluster import cluster
from virtualflow.cli.dashboard import dashboard
from virtualflow.cli.defaults import read_defaults
from virtualflow.cli.doctor import doctor
from virtualflow.cli.explain import explain
from virtualflow.cli.jobs import clean, logs, resize, status, stop
from virtualflow.cli.join import join
from virtualflow.cli.plot import plot
from virtualflow.cli.profile import profile
from virtualflow.cli.queue import cancel, describe, devices, pause, priority, queue, resume, submit
from virtualflow.cli.run import run
from virtualflow.cli.screen import screen
from virtualflow.cli.simulate import simulate
from virtualflow.cli.solve import solve
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
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train a PyTorch model on any number of devices and get the same bits.",
    epilog="A first try: [bold]vf run --devices 2 train.py[/bold], then [bold]vf verify[/bold] the two runs.",
)
# A script's own options follow the script and are left alone.
app.command(context_settings={"allow_interspersed_args": False})(run)
app.command(context_settings={"allow_interspersed_args": False})(profile)
app.command(context_settings={"allow_interspersed_args": False})(submit)
app.command()(solve)
app.command()(plot)
app.command()(explain)
app.command()(verify)
app.command()(doctor)
ONE_JOB: tuple[Callable[..., None], ...] = (status, resize, stop, logs, timeline, tensorboard, join, clean)
MANAGED: tuple[Callable[..., None], ...] = (queue, describe, priority, pause, resume, cancel, devices, dashboard)
for verb in (*ONE_JOB, *MANAGED):
    app.command()(verb)
app.add_typer(cluster, name="cluster")
app.command()(simulate)
app.add_typer(trace, name="trace")


@app.callback(invoke_without_command=True)
def _options(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        print(__version__)
        raise typer.Exit


def run_verb() -> None:
    """An error of ours, or of the disk's, is a message, not a traceback."""
    try:
        commands = typer.main.get_command(app)
        assert isinstance(commands, TyperGroup)
        commands(default_map=read_defaults(commands))
    except VirtualFlowError as error:
        _refuse(str(error))
    except BrokenPipeError:  # whoever read the output has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.filename is None:
            _refuse(f"{error.strerror or error}.{_about(str(home())) if error.errno in NO_ROOM else ''}")
        _refuse(f"{error.filename}: {error.strerror}.{_about(str(error.filename))}")


def _refuse(text: str) -> NoReturn:
    told = Text.assemble(("error:", "bold red"), f" {visible(text)}")
    screen(stderr=True).print(told, highlight=False, soft_wrap=True)
    sys.exit(2)


def _about(filename: str) -> str:
    if not Path(filename).is_relative_to(home()):
        return ""
    return f" That is where jobs leave their files: set VF_HOME to a folder that you can write to (it is {home()})."
