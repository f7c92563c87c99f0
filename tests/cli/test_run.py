"""``vf run`` as a user meets it: a real command, real workers, real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(400)  # a busy machine decides nothing

VF = [sys.executable, "-m", "virtualflow.cli.main"]
TRAIN = """
import os, sys, time, torch, virtualflow as vf
from tests.train.small import *
vf.seed(0)
trainer = make(mlp(), loader_workers=1)
print("worker", os.getpid(), flush=True)
"""
FOREVER = """
data = regression(40_000)  # an epoch outlasts the test, and so do its loader processes
for _ in trainer.epochs(10**9):
    for batch in trainer.batches(data):
        trainer.step(batch)
"""


def script(folder: Path, body: str) -> str:
    path = folder / "script.py"
    path.write_text(TRAIN + textwrap.dedent(body))
    return str(path)


def vf(*arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*VF, *arguments], capture_output=True, text=True, timeout=timeout, check=False)


def test_the_same_script_alone_and_on_three_devices_gives_the_same_digest(tmp_path: Path) -> None:
    path = script(tmp_path, "train(trainer, regression(), epochs=2)\nprint(sys.argv[1:], trainer.digest())")
    alone = subprocess.run([sys.executable, path, "a", "--b"], capture_output=True, text=True, timeout=300, check=True)
    three = vf("run", "--devices", "3", path, "a", "--b")
    assert three.returncode == 0, three.stderr
    assert three.stdout.splitlines()[0].startswith("job ")
    assert alone.stdout.splitlines()[-1] == three.stdout.splitlines()[-1]
    assert three.stdout.count("worker") == 1  # the lead's output only
    jobs = sorted(Path(os.environ["VF_HOME"], "jobs").iterdir())
    verdict = vf("verify", jobs[0].name, jobs[1].name)
    assert verdict.returncode == 0, verdict.stdout
    assert "equal: 10 steps, bit by bit" in verdict.stdout


def test_all_output_names_the_device_of_each_line(tmp_path: Path) -> None:
    # Both have written before either ends: the end of one ends the other.
    body = """
    import time
    from pathlib import Path
    print('hello', file=sys.stderr)
    with open(sys.argv[1], "a") as file:
        file.write("x")
    while Path(sys.argv[1]).stat().st_size < 2:
        time.sleep(0.01)
    sys.exit(3)
    """
    finished = vf("run", "--devices", "2", "--all-output", script(tmp_path, body), str(tmp_path / "written"))
    assert finished.returncode == 3
    for device in "01":
        assert f"[{device}] worker" in finished.stdout
        assert f"[{device}] hello" in finished.stderr


def test_a_failure_is_told_once(tmp_path: Path) -> None:
    path = script(tmp_path, "raise RuntimeError('it broke')")
    finished = vf("run", "--devices", "2", path)
    assert finished.returncode == 1
    assert finished.stderr.count("it broke") == 2  # the line of code, and the message
    assert finished.stderr.count("Traceback") == 1
    assert "failed on device" in finished.stderr


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """A job that runs until stopped, and the processes that belong to it."""
    path = script(tmp_path, FOREVER)
    with subprocess.Popen(
        [*VF, "run", "--devices", "3", "--all-output", path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        workers = []
        while len(workers) < 3:
            line = process.stdout.readline().decode()
            assert line, "the job ended early"
            if "worker" in line:
                workers.append(int(line.split()[-1]))
        deadline = time.monotonic() + 120
        while len(descendants(process.pid)) < 1 + 3 + 3 and time.monotonic() < deadline:
            time.sleep(0.05)  # until it trains, with loader processes
        time.sleep(0.5)
        yield process, descendants(process.pid)
        process.kill()


def descendants(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # it has just ended
        return []
    return [int(child) for child in children] + [d for child in children for d in descendants(int(child))]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_behind(endless: tuple[subprocess.Popen[bytes], list[int]], how: int) -> None:
    process, family = endless
    assert len(family) >= 1 + 3 + 3  # fork server, workers, loaders
    process.send_signal(how)
    if how == signal.SIGKILL:  # the job goes on in the background
        process.wait()
        until_stopped()
    output = process.communicate(timeout=120)[0].decode()
    if how != signal.SIGKILL:
        assert process.returncode == 128 + how
        assert "interrupted: all workers have ended" in output
    assert "Traceback" not in output
    deadline = time.monotonic() + 120
    while (left := [pid for pid in family if alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


def until_stopped() -> None:
    """Have the only job stopped, by whoever coordinates it by now."""
    (job,) = Path(os.environ["VF_HOME"], "jobs").iterdir()
    deadline = time.monotonic() + 120
    while (stopped := vf("stop", job.name)).returncode:
        assert time.monotonic() < deadline, stopped.stderr


def test_bad_options_get_clear_errors(tmp_path: Path) -> None:
    path = script(tmp_path, "")
    for options, message in (
        (["run", "missing.py"], "there is no script missing.py"),
        (["run", "--devices", "0", path], "a number of devices, 1 or more"),
        (["run", "--devices", "two", path], "1 or more"),
        (["run", "--mapping", "a,b", path], "whole numbers"),
        (["run", "--device-type", "tpu", path], "auto, cpu, cuda or xpu"),
    ):
        finished = vf(*options)
        assert finished.returncode == 2
        assert message in finished.stderr
        assert "Traceback" not in finished.stderr


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that trains, in a package of the current folder."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "pkg" / "rates.py").write_text("RATE = 0.5\n")
    (tmp_path / "pkg" / "train.py").write_text(
        "from .rates import RATE\n"
        + TRAIN.replace("make(mlp()", "make(mlp(), clip_grad_norm=RATE")
        + "train(trainer, regression(), epochs=2)\nprint(sys.argv[1:], trainer.digest())"
    )
    monkeypatch.chdir(tmp_path)
    return "pkg.train"


def test_a_module_runs_as_with_python_m_and_is_called_by_its_name(package: str) -> None:
    command = [sys.executable, "-m", package, "a", "--b"]
    plain = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    two = vf("run", "--devices", "2", "--name", "my job", "-m", package, "a", "--b")
    assert two.returncode == 0, two.stderr
    assert plain.stdout.splitlines()[-1] == two.stdout.splitlines()[-1]
    assert "my job" in vf("status").stdout
    assert "DONE" in vf("status", "my job").stdout
    first = sorted(Path(os.environ["VF_HOME"], "jobs").iterdir())[0].name
    verdict = vf("verify", first, "my job")
    assert "equal: 10 steps, bit by bit" in verdict.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-m", "pkg.missing"], "there is no module pkg.missing"),
        (["pkg.train"], "or -m for a module"),
        (["--name", "../x", "-m", "pkg.train"], "the name '../x' can't be used"),
    ],
)
def test_what_is_no_module_or_no_name_gets_a_clear_error(package: str, options: list[str], message: str) -> None:
    finished = vf("run", *options)
    assert finished.returncode == 2
    assert message in finished.stderr
