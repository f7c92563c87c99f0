"""Text and files of others."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from virtualflow.system import private_files
from virtualflow.system.text import visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain \t text\r\nnext", "plain \t text\nnext"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\u202eb", "a\\u202eb"),
        ("caf\u00e9 \ud83d", "caf\u00e9 \\ud83d"),
    ],
)
def test_a_terminal_obeys_nothing_that_is_shown(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_a_folder_that_was_open_to_others_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True, mode=0o755)
    private_files.make_folder(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_new_file_is_its_owners(tmp_path: Path) -> None:
    with open(tmp_path / "file", "w", opener=private_files.opener):
        pass
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


def test_nobody_waits_for_a_fifo(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="not a regular file"):
        open(tmp_path / "fifo", opener=private_files.regular_opener).close()
