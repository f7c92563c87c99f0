"""``vf.toml``: defaults of options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from virtualflow.cli.defaults import read_defaults
from virtualflow.cli.main import app
from virtualflow.errors import ConfigError

EXPLAIN = ("explain", "--batch-size", "8", "--json")


@pytest.fixture
def commands() -> TyperGroup:
    made = typer.main.get_command(app)
    assert isinstance(made, TyperGroup)
    return made


@pytest.fixture(autouse=True)
def here(tmp_path: Path, vf_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    vf_home.mkdir(exist_ok=True)
    (folder := tmp_path / "here").mkdir()
    monkeypatch.chdir(folder)
    return folder


def devices(commands: TyperGroup, *words: str) -> int:
    done = CliRunner().invoke(app, [*EXPLAIN, *words], catch_exceptions=False, default_map=read_defaults(commands))
    return len(json.loads(done.stdout)["devices"])


def test_the_command_line_counts_before_the_folder_and_the_folder_before_the_home(
    commands: TyperGroup, here: Path, vf_home: Path
) -> None:
    (vf_home / "vf.toml").write_text("[explain]\ndevices = 2\nvirtual-nodes = '8'\n")
    assert devices(commands) == 2
    (here / "vf.toml").write_text("[explain]\ndevices = 3\n")
    assert devices(commands) == 3
    assert devices(commands, "--devices", "4") == 4


def test_groups_of_commands_have_tables_of_their_own(commands: TyperGroup, here: Path) -> None:
    (here / "vf.toml").write_text("[run]\ncheckpoint-every = 7\nno-replace = true\n[cluster.up]\npolicy = 'wfs'\n")
    with pytest.raises(ConfigError, match="no option --no-replace"):
        read_defaults(commands)
    (here / "vf.toml").write_text("[run]\ncheckpoint-every = 7\nreplace = false\n[cluster.up]\npolicy = 'wfs'\n")
    assert read_defaults(commands) == {
        "run": {"checkpoint_every": 7, "replace": False},
        "cluster": {"up": {"policy": "wfs"}},
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[run]\ndevises = 2\n", "`vf run` has no option --devises. It has: .*devices"),
        ("[walk]\n", "'walk' is not a table for a command of vf"),
        ("devices = 2\n", "'devices' is not a table"),
        ("[cluster]\nup = 3\n", r"'cluster.up' is not a table"),
        ("[run\n", "can't be read"),
    ],
)
def test_a_file_that_says_something_else_is_refused_by_name(
    commands: TyperGroup, here: Path, text: str, message: str
) -> None:
    (here / "vf.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_defaults(commands)
