"""Ctrl-C and closed terminals, as a person meets them: ``vf run`` on a real terminal, which sends the signals."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import signal
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.cli.test_jobs import SCRIPT, STEPS, run_verb, wait_for_end
from tests.cli.test_run import VF, descendants, vf
from virtualflow.events import STREAM, Loaded, Regrouped, StepDone, read_events
from virtualflow.job.folder import JobFolder
from virtualflow.system.home import home
from virtualflow.system.interrupts import Interrupted, Interrupts, interruptible

pytestmark = pytest.mark.timeout(400)  # a busy machine decides nothing

CTRL_C = b"\x03"
STOPPING = "stopping with a checkpoint; Ctrl-C again stops at once"


class Terminal:
    """A job on a terminal of its own; *hold* is what keeps it from its end."""

    def __init__(self, folder: Path, hold: str) -> None:
        self.folder = folder
        (folder / hold).touch()
        self._keyboard, screen = pty.openpty()
        self._seen = b""

        def be_on_it() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored

        command = [*VF, "run", "--devices", "2", str(SCRIPT), str(folder)]
        streams = {"stdin": screen, "stdout": screen, "stderr": screen}
        environment = os.environ | {"COLUMNS": "200", "TERM": "xterm"}
        self._process = subprocess.Popen(
            command, **streams, env=environment, start_new_session=True, preexec_fn=be_on_it
        )
        os.close(screen)
        self.id = self.until("job ").split("job ")[1].split()[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            os.close(self._keyboard)

    def until(self, text: str) -> str:
        """All that was shown, as soon as there is a whole line with *text*."""
        while text not in self.shown or not self.shown.split(text, 1)[1].count("\n"):
            self._seen += os.read(self._keyboard, 4096)
        return self.shown

    @property
    def shown(self) -> str:
        return self._seen.decode(errors="replace").replace("\r\n", "\n")

    def type(self, keys: bytes) -> None:
        os.write(self._keyboard, keys)

    def close(self) -> None:
        """What the window does: the kernel then sends SIGHUP."""
        os.close(self._keyboard)

    def wait(self) -> int:
        """The exit code. Everything is shown by then, and nothing is left of the job."""
        family = descendants(self._process.pid)
        with contextlib.suppress(OSError):  # that is how a terminal ends that nobody writes to any more
            while data := os.read(self._keyboard, 4096):
                self._seen += data
        code = self._process.wait(120)
        wait_for_end(family)
        return code


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job").mkdir()
    return tmp_path / "job"


def until_step(job: str, step: int) -> None:
    stream = home() / "jobs" / job / STREAM
    deadline = time.monotonic() + 120
    while not (stream.exists() and any(getattr(event, "step", -1) >= step for event in read_events(stream))):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_ctrl_c_leaves_a_checkpoint_from_which_the_job_goes_on(folder: Path, calm: str) -> None:
    with Terminal(folder, "slow") as terminal:
        until_step(terminal.id, 3)
        terminal.type(CTRL_C)  # to the whole process group
        terminal.until(STOPPING)
        assert terminal.wait() == 128 + signal.SIGINT
    path = JobFolder.of(terminal.id).path
    steps = [event.step for event in read_events(path / STREAM) if isinstance(event, StepDone)]
    advice = f"`vf run --resume {terminal.id}` continues from step {len(steps)}"
    assert f"interrupted: all workers have ended. {advice}." in terminal.shown
    assert "Traceback" not in terminal.shown
    assert (path / "checkpoints" / f"step-{len(steps):09d}.pt").exists()
    assert advice in run_verb("status", terminal.id)[1]
    state = json.loads(run_verb("status", terminal.id, "--json")[1])
    assert (state["state"], state["checkpoint_step"], state["failures"]) == ("CANCELLED", len(steps), 0)

    (folder / "slow").unlink()
    resumed = vf("run", "--resume", terminal.id)
    assert resumed.returncode == 0, resumed.stderr
    assert f"job {terminal.id} continues from step {len(steps)}\n" in resumed.stderr
    assert resumed.stdout.splitlines()[-1] == calm
    events = list(read_events(path / STREAM))
    assert [event.step for event in events if isinstance(event, StepDone)] == list(range(STEPS))
    assert [event.step for event in events if isinstance(event, Loaded)] == [len(steps)]
    assert not [event for event in events if isinstance(event, Regrouped)]  # no worker was hit
    assert "--resume" not in run_verb("status", terminal.id)[1]


def test_a_second_ctrl_c_stops_at_once(folder: Path) -> None:
    with Terminal(folder, "hold-step") as terminal:
        until_step(terminal.id, 0)
        terminal.type(CTRL_C)
        terminal.until(STOPPING)
        terminal.type(CTRL_C)
        assert terminal.wait() == 128 + signal.SIGINT
    advice = f"`vf run --resume {terminal.id}` starts from the beginning: there is no checkpoint"
    assert f"interrupted: all workers have ended. {advice}." in terminal.shown
    assert "Traceback" not in terminal.shown
    status = run_verb("status", terminal.id)[1]
    assert "CANCELLED" in status
    assert advice in status


def test_before_training_there_is_nothing_to_save(folder: Path) -> None:
    with Terminal(folder, "hold-starting") as terminal:
        while not JobFolder.of(terminal.id).read_state().workers:
            time.sleep(0.02)
        terminal.type(CTRL_C)
        assert terminal.wait() == 128 + signal.SIGINT
    assert STOPPING not in terminal.shown
    assert "Traceback" not in terminal.shown
    assert "starts from the beginning" in terminal.shown
    assert "CANCELLED" in run_verb("status", terminal.id)[1]


def test_a_closed_terminal_leaves_a_checkpoint(folder: Path) -> None:
    with Terminal(folder, "slow") as terminal:
        until_step(terminal.id, 3)
        terminal.close()
        assert terminal.wait() == 128 + signal.SIGHUP
    assert "CANCELLED" in run_verb("status", terminal.id)[1]
    assert "continues from step" in run_verb("status", terminal.id)[1]


@pytest.fixture
def kept_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("kept_signals")
def test_what_nohup_ignores_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with interruptible():
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


@pytest.mark.usefixtures("kept_signals")
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_is_no_notice_but_hanging_up_twice_is_no_hurry(second: int) -> None:
    heeded: list[int] = []
    interrupts = Interrupts()
    interrupts.on_notice = lambda number: heeded.append(number) is None
    for _ in range(2):
        interrupts.handle(signal.SIGHUP, None)
    assert heeded == [signal.SIGHUP]
    with pytest.raises(Interrupted):
        interrupts.handle(second, None)


@pytest.mark.usefixtures("kept_signals")
def test_a_notice_that_nobody_heeds_is_none() -> None:
    interrupts = Interrupts()
    interrupts.on_notice = lambda _: False
    with pytest.raises(Interrupted):
        interrupts.handle(signal.SIGHUP, None)
