"""``vf`` as a newcomer meets it: its panels, its version, shell completion, and ``python -m virtualflow``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from virtualflow import __version__
from virtualflow.cli.commands import ALL, PANELS, needed


def vf(*arguments: str, **environment: str) -> str:
    command = [sys.executable, "-m", "virtualflow", *arguments]
    settings = os.environ | {"COLUMNS": "120", "TERM": "dumb"} | environment
    process = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=100)
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_a_command_line_loads_the_command_that_it_names_and_help_all_of_them() -> None:
    assert needed(["status", "job", "--json"]) == ["status"]
    assert needed([]) == needed(["--help"]) == needed(["statsu"]) == ALL
    program = "import sys; sys.argv = ['vf', 'port', '--help']\nfrom virtualflow.cli.main import main\ntry: main()\n"
    program += "except SystemExit: sys.exit('virtualflow.cli.port' not in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=100, check=False).returncode == 0


def test_defaults_in_a_file_are_those_of_any_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vf.toml").write_text("[run]\ndevices = 2\n")
    assert needed(["status"]) == ALL


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
