"""Commands that are told of a job's end can do anything; none of it stays behind, and none of it holds anybody up."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from tests.manager.managed import until
from virtualflow.errors import ManagerError
from virtualflow.manager import notice_sender

NOTICE = dict.fromkeys(("id", "name", "owner", "state", "text"), "x")


def given(where: str, folder: Path, over: threading.Event) -> None:
    notice_sender.send(where, NOTICE, str(folder), over)


def pid_in(path: Path) -> int:
    return int(until(lambda: path.exists() and path.read_text().strip()))


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


HANGS = "sleep 600 & echo $! > child; wait; true"


def test_a_command_that_hangs_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notice_sender, "COMMAND_SECONDS", 1.0)
    with pytest.raises(ManagerError, match="did not end within 1 s"):
        given(HANGS, tmp_path, threading.Event())
    assert until(lambda: has_ended(pid_in(tmp_path / "child")))


def test_a_manager_that_ends_waits_for_no_command(tmp_path: Path) -> None:
    over = threading.Event()
    raised: list[BaseException] = []

    def tell() -> None:
        with pytest.raises(ManagerError) as error:
            given(HANGS, tmp_path, over)
        raised.append(error.value)

    thread = threading.Thread(target=tell)
    thread.start()
    child = pid_in(tmp_path / "child")
    over.set()
    thread.join()
    assert raised
    assert until(lambda: has_ended(child))


def test_what_a_command_leaves_in_the_background_is_its_own_business(tmp_path: Path) -> None:
    given("sleep 600 >&2 & echo $! > child", tmp_path, threading.Event())
    child = pid_in(tmp_path / "child")
    assert not has_ended(child)
    os.kill(child, signal.SIGKILL)


def test_the_last_line_that_a_command_prints_says_why_it_failed(tmp_path: Path) -> None:
    with pytest.raises(ManagerError, match=r"code 7: no such channel$"):
        given("seq 100000 >&2; echo no such channel >&2; exit 7", tmp_path, threading.Event())


@pytest.mark.parametrize("where", ["ftp://host/x", "https://", "http://host:port/"])
def test_an_address_that_nothing_can_be_sent_to_is_refused(where: str) -> None:
    with pytest.raises(ManagerError):
        notice_sender.check(where)


@pytest.mark.parametrize("where", ["", "true", "curl -d @- https://host/x", "http://host/x?y=1", "https://host:443"])
def test_commands_and_web_addresses_are_taken(where: str) -> None:
    notice_sender.check(where)
