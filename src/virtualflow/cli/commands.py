"""The commands of ``vf``, in panels, and the module of each: a command line loads the one that it names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module

import typer

from virtualflow import __version__
from virtualflow.cli.defaults import default_files
from virtualflow.cli.help import Command, ScriptCommand

PANELS = {
    "Run a job": ("run", "submit", "join", "port", "explain", "doctor", "selftest"),
    "Look at a job": (
        "status", "queue", "sweep", "describe", "logs", "timeline", "tensorboard", "verify", "replay", "bisect",
    ),
    "Change a job": ("resize", "stop", "pause", "resume", "priority", "cancel", "clean"),
    "Cluster": ("cluster", "devices", "dashboard"),
    "Mixed devices": ("profile", "solve", "plot"),
    "Simulation": ("simulate", "trace"),
}  # fmt: skip
FAMILIES = {  # modules with several commands; all others have the name of theirs
    "jobs": ("status", "resize", "stop"),
    "queue": ("submit", "queue", "describe", "pause", "resume", "priority", "cancel", "devices"),
}
MODULES = {name: module for module, names in FAMILIES.items() for name in names}
ALL = tuple(name for names in PANELS.values() for name in names)
TAKE_A_SCRIPT = ("run", "profile", "submit")
SCRIPT = {"allow_interspersed_args": False}  # the script's own options follow the script and are left alone


def needed(words: Sequence[str]) -> Sequence[str]:
    """The command that a command line begins with; all of them for help, and where files give them defaults."""
    return words[:1] if words and words[0] in ALL and not default_files() else ALL


def app_of(names: Iterable[str]) -> typer.Typer:
    """``vf`` with these commands."""
    app = typer.Typer(
        name="vf",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Train a PyTorch model on any number of devices and get the same bits.",
        epilog="To begin: [bold]vf run --devices 2 train.py[/bold], then [bold]vf status[/bold].",
    )
    app.callback(invoke_without_command=True)(_options)
    panel_of = {name: panel for panel, in_panel in PANELS.items() for name in in_panel}
    for name in names:
        command = getattr(import_module(f"virtualflow.cli.{MODULES.get(name, name)}"), name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, rich_help_panel=panel_of[name])
        else:
            takes_script = name in TAKE_A_SCRIPT
            app.command(
                rich_help_panel=panel_of[name],
                context_settings=SCRIPT if takes_script else {},
                cls=ScriptCommand if takes_script else Command,
            )(command)
    return app


def _options(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        print(__version__)
        raise typer.Exit
