"""Communication between machines, measured by ``vf profile``: real processes on hosts that are network namespaces."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cli.test_mixed import TRAIN, refused
from tests.hosts import hosts
from tests.ports import free_port
from virtualflow.cli.main import app

pytestmark = pytest.mark.timeout(400)  # a busy machine decides nothing

VF = [sys.executable, "-m", "virtualflow.cli.main"]


@contextmanager
def started(command: list[str], folder: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (
        log.open("wb") as output,
        subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def profile(address: str, machines: int, *more: str) -> list[str]:
    door = ["--machines", str(machines), "--listen", address, "--token-file", "token"]
    return [*VF, "profile", "--device-type", "cpu", "--largest", "1", *door, *more, "train.py"]


def join(address: str) -> list[str]:
    return [*VF, "join", address, "--token-file", "token"]


def wait_for(text: str, log: Path) -> None:
    deadline = time.monotonic() + 120
    while text not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN.format(width=128))
    return tmp_path


def predicted(devices: str) -> dict[str, float]:
    words = ["solve", "--workload", "train", "--batch-size", "3", "--devices", devices, "--evaluate", "cpu=1x1"]
    done = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
    report: dict[str, float] = json.loads(done.stdout)
    return report


def test_communication_is_measured_for_each_number_of_machines(folder: Path, vf_home: Path) -> None:
    address, log = "10.77.0.1:29400", folder / "log"
    with hosts(3) as (here, *others), started([*here, *profile(address, 3)], folder, log) as profiling:
        wait_for(f"waiting for 2 of 3 machines: run `vf join {address} --token-file token` there", log)
        guests = [
            subprocess.Popen([*there, *join(address)], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            for there in others
        ]
        try:
            assert [guest.wait(100) for guest in guests] == [0, 0], log.read_text()
            assert profiling.wait(100) == 0, log.read_text()
        finally:
            for guest in guests:
                guest.kill()
                guest.communicate()
    costs = json.loads((vf_home / "profiles/train/cpu.json").read_text())["communication"]
    assert list(costs["by_machines"]) == ["2", "3"]
    assert all(seconds > 0 for seconds in costs["by_machines"].values())
    apart, together = predicted("cpu:1+1+1"), predicted("cpu:3")
    added = apart["step_time_seconds"] - together["step_time_seconds"]
    assert added == pytest.approx(max(costs["by_machines"].values()))


def test_machines_that_do_not_come_are_not_waited_for_for_ever(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    command = profile(f"127.0.0.1:{free_port()}", 2, "--minutes", "0.05")
    message = refused(*command[len(VF) :])
    assert message.startswith("1 of 2 machines took part: 127.0.0.1. Run `vf join")


def test_an_interruption_ends_both_sides(folder: Path) -> None:
    address, log = f"127.0.0.1:{free_port()}", folder / "log"
    with started(profile(address, 3), folder, log) as profiling:
        wait_for("waiting for 2 of 3", log)
        with started(join(address), folder, folder / "guest") as guest:
            wait_for("waiting for 1 of 3", log)
            os.kill(profiling.pid, signal.SIGINT)
            assert profiling.wait(100) == 128 + signal.SIGINT
            assert guest.wait(100) == 0, (folder / "guest").read_text()
    assert "interrupted" in log.read_text()
