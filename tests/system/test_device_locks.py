"""Two workers never share an accelerator, whatever jobs they belong to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from virtualflow.errors import LaunchError
from virtualflow.system import device_locks

HOLD = """
import sys
from virtualflow.system import device_locks
print(device_locks.claim(sys.argv[1:], "job 7, process 1"), flush=True)
sys.stdin.read()
"""


def name(letter: str) -> str:
    """Of an accelerator that no other test on this machine makes up."""
    return f"GPU/{os.getpid()}-{letter}"


def holding(*identities: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, *identities], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "0\n"
    return process


def test_the_first_free_one_is_taken_and_given_back_when_its_process_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_locks, "CLAIM_SECONDS", 0.0)
    with holding(name("a")) as other:
        assert device_locks.claim([name("a"), name("b")], "mine") == 1
        with pytest.raises(LaunchError, match=f"{name('a')} by job 7, process 1"):
            device_locks.claim([name("a")], "mine")
        other.kill()
    assert device_locks.claim([name("a")], "mine") == 0


def test_who_has_another_home_does_not_get_it_either(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(device_locks, "CLAIM_SECONDS", 0.0)
    with holding(name("d")) as other:
        monkeypatch.setenv("VF_HOME", str(tmp_path / "another"))
        with pytest.raises(LaunchError, match=f"{name('d')} by another user, or with another VF_HOME"):
            device_locks.claim([name("d")], "mine")
        assert device_locks.claim([name("d"), name("e")], "mine") == 1
        other.kill()
    assert device_locks.claim([name("d")], "mine") == 0


def test_one_process_does_not_get_the_same_one_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_locks, "CLAIM_SECONDS", 0.0)
    assert device_locks.claim([name("c")], "mine") == 0
    with pytest.raises(LaunchError, match="by mine"):
        device_locks.claim([name("c")], "again")
