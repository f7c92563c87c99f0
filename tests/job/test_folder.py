"""A job's folder under damage: nobody waits for it, and a job that runs is never taken for one that does not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from virtualflow.errors import DamagedError, LaunchError
from virtualflow.job.folder import JobFolder, read_json, write_json


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    made = JobFolder(tmp_path / "jobs" / "job")
    made.make()
    return made


@pytest.mark.parametrize("remade", [False, True])
def test_a_job_runs_though_its_lock_was_removed_and_perhaps_made_again(folder: JobFolder, remade: bool) -> None:
    write_json(folder.path / "state.json", {"state": "RUNNING", "workers": []})
    with folder.locked():
        assert folder.is_locked()
        folder.lock.unlink()
        if remade:
            folder.lock.touch()
        assert folder.is_locked()
    assert not folder.is_locked()


def test_nobody_waits_at_a_fifo(folder: JobFolder) -> None:
    state = folder.path / "state.json"
    os.mkfifo(state)
    with pytest.raises(OSError, match="not a regular file"):
        read_json(state)
    folder.lock.unlink()
    os.mkfifo(folder.lock)
    with pytest.raises(OSError, match="not a regular file"):
        folder.is_locked()
    os.mkfifo(folder.path / ".other.json.partial")
    with pytest.raises(OSError, match="No such device"):
        write_json(folder.path / "other.json", {})
    write_json(state, {"state": "DONE", "workers": []})  # takes its place
    assert folder.written_state().state == "DONE"


def test_what_is_no_json_is_damaged(folder: JobFolder) -> None:
    (folder.path / "state.json").write_bytes(b"\xff{")
    with pytest.raises(DamagedError):
        folder.written_state()


def test_a_job_has_one_coordinator_at_a_time(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    assert not folder.is_coordinated()
    with folder.coordinated():
        assert folder.is_coordinated()
        with pytest.raises(LaunchError, match="has a coordinator already"), folder.coordinated():
            pass
    assert not folder.is_coordinated()
