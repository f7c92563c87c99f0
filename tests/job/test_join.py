"""Workers from any launcher: on loopback, and from another host, which is a network namespace here."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.hosts import hosts
from tests.ports import free_port
from virtualflow.events import STREAM, read_events
from virtualflow.events.certificate import Certificate, compare

pytestmark = pytest.mark.timeout(400)  # a busy machine decides nothing

VF = [sys.executable, "-m", "virtualflow.cli.main"]
JOB = Path(__file__).parent.parent / "chaos" / "job.py"
EPOCHS = 40


def options(hold: Path | None = None) -> str:
    return json.dumps({"epochs": EPOCHS, "evaluate": False, "hold": str(hold) if hold else None})


def certificate(home: Path) -> Certificate:
    (folder,) = (home / "jobs").iterdir()
    return Certificate.of(read_events(folder / STREAM), "job")


def status(home: Path) -> dict[str, object]:
    shown = subprocess.run([*VF, "status", "--json"], capture_output=True, text=True, timeout=120, check=True,
                           env=os.environ | {"VF_HOME": str(home)})  # fmt: skip
    (job,) = json.loads(shown.stdout)
    return dict(job)


def wait_for(home: Path, devices: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if (home / "jobs").exists():
            job = status(home)
            if job["state"] == "RUNNING" and len(job["workers"]) == devices:  # type: ignore[arg-type]
                return
        time.sleep(0.2)
    pytest.fail(f"the job did not get to {devices} devices")


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    home = tmp_path_factory.mktemp("calm")
    command = [*VF, "run", "--devices", "1", str(JOB), options()]
    subprocess.run(command, env=os.environ | {"VF_HOME": str(home)}, check=True, timeout=120, capture_output=True)
    return certificate(home)


def take_part(tmp_path: Path, address: str, job: list[str], guest: list[str], calm: Certificate) -> None:
    """Run a job on two devices, let guests join, kill one, let one leave; compare with an undisturbed run."""
    home, token = tmp_path / "home", tmp_path / "token"
    environment = os.environ | {"VF_HOME": str(home)}
    hold = tmp_path / "hold"
    hold.touch()
    script = [str(JOB), options(hold)]
    run = [*job, *VF, "run", "--devices", "2", "--listen", address, "--token-file", str(token), *script]
    with subprocess.Popen(run, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as coordinator:
        guests = []
        try:
            wait_for(home, 2)
            knock = [*guest, *VF, "join", address, "--token-file", str(token)]
            guests = [subprocess.Popen(knock, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for _ in range(2)]
            wait_for(home, 4)
            guests[0].kill()
            wait_for(home, 3)
            guests[1].send_signal(signal.SIGINT)  # Ctrl-C there is no end of the job here
            wait_for(home, 2)
            assert guests[1].wait(timeout=120) == 0
            guests.append(subprocess.Popen(knock, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
            wait_for(home, 3)
            hold.unlink()
            output = coordinator.communicate(timeout=120)[0].decode()
            assert coordinator.returncode == 0, output
            assert guests[2].wait(timeout=120) == 0
        finally:
            for process in (coordinator, *guests):
                process.kill()
            for process in guests:
                process.communicate()
    verdict = compare(calm, certificate(home))
    assert verdict.equal, verdict


def test_workers_join_on_loopback(tmp_path: Path, calm: Certificate) -> None:
    take_part(tmp_path, f"127.0.0.1:{free_port()}", [], [], calm)


def test_workers_join_from_another_host(tmp_path: Path, calm: Certificate) -> None:
    with hosts(2) as (here, there):
        take_part(tmp_path, "10.77.0.1:29417", here, there, calm)


def test_nothing_is_accepted_without_the_token(tmp_path: Path) -> None:
    home, token = tmp_path / "home", tmp_path / "token"
    wrong = tmp_path / "wrong"
    port = free_port()
    hold = tmp_path / "hold"
    hold.touch()
    run = [*VF, "run", "--listen", f"127.0.0.1:{port}", "--token-file", str(token), str(JOB), options(hold)]
    with subprocess.Popen(run, env=os.environ | {"VF_HOME": str(home)}, stdout=subprocess.DEVNULL) as coordinator:
        try:
            wait_for(home, 1)
            assert oct(token.stat().st_mode & 0o777) == "0o600"
            wrong.write_text("\n".join(["0123456789abcdef0123", *token.read_text().split()[1:]]))
            refused = subprocess.run([*VF, "join", f"127.0.0.1:{port}", "--token-file", str(wrong)],
                                     capture_output=True, text=True, timeout=120, check=False)  # fmt: skip
            assert refused.returncode == 2
            assert "the token is not the one" in refused.stderr
            with socket.create_connection(("127.0.0.1", port), timeout=10) as stranger:
                stranger.sendall(b"\x80\x04garbage\n{}\n")
                received = b""
                with contextlib.suppress(ConnectionResetError):
                    while data := stranger.recv(4096):
                        received += data
            assert b"nonce" not in received  # nothing but TLS's own word for what it can't read
            assert len(status(home)["workers"]) == 1  # type: ignore[arg-type]
        finally:
            coordinator.kill()
