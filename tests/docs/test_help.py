"""``vf`` as a newcomer meets it: its panels, its version, shell completion, and ``python -m virtualflow``."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import typer

from virtualflow import __version__
from virtualflow.cli.app import PANELS, app


def vf(*arguments: str, **environment: str) -> str:
    command = [sys.executable, "-m", "virtualflow", *arguments]
    settings = os.environ | {"COLUMNS": "120", "TERM": "dumb"} | environment
    process = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=100)
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_every_command_is_in_a_panel() -> None:
    named = {c[0] if isinstance(c, tuple) else c.__name__ for commands in PANELS.values() for c in commands}
    assert named == typer.main.get_command(app).commands.keys()  # type: ignore[attr-defined]


def test_help_shows_the_panels_in_the_order_in_which_a_job_meets_them() -> None:
    text = vf("--help")
    assert "Usage: vf " in text
    places = [text.index(f" {panel} ") for panel in PANELS]
    assert places == sorted(places)
    assert list(PANELS)[:3] == ["Run a job", "Look at a job", "Change a job"]


def test_version_is_the_packages() -> None:
    assert vf("--version").strip() == __version__


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete_commands(shell: str) -> None:
    typed = {"COMP_WORDS": "vf des", "COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "vf des"}
    completion = vf(**typed, _VF_COMPLETE=f"complete_{shell}", _TYPER_COMPLETE_FISH_ACTION="get-args")
    assert "describe" in completion
