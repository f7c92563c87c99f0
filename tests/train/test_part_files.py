"""Checkpoints in parts: what is said where a part is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from virtualflow.errors import CheckpointError
from virtualflow.system.sealed_files import parts_folder
from virtualflow.train.part_files import UNITS, with_paths


def test_parts_are_found_beside_their_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    parts_folder(path).mkdir()
    (parts_folder(path) / "0.pt").touch()
    assert with_paths({UNITS: ["0.pt"], "step": 3}, path) == {UNITS: [str(parts_folder(path) / "0.pt")], "step": 3}


def test_a_missing_part_is_named_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    parts_folder(path).mkdir()
    (parts_folder(path) / "0.pt").touch()
    with pytest.raises(CheckpointError, match=r"1 of 2 parts of .*c\.pt are missing.* move c\.pt and .*together"):
        with_paths({UNITS: ["0.pt", "1.pt"]}, path)
