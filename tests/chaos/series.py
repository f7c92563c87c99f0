"""Runs schedules one after another, each within a time; keeps evidence of failures, and counts whatever happens."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from tests.cli.test_run import alive

REPOSITORY = Path(__file__).parent.parent.parent
ORPHAN_SECONDS = 20.0  # for processes to be gone after their job, on a busy machine
Schedule = Callable[[int, Path], Counter[str]]  # seed and folder in; how often each kind has had an effect


class Hung(BaseException):
    """A schedule took too long. No handler of the code under test may take it for a failure of its own."""


@dataclass
class Outcome:
    """Which schedules held, which did not and why, and how often each kind of strike had an effect."""

    passed: list[int] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({"passed": self.passed, "failed": self.failed, "counts": self.counts}))

    @classmethod
    def read(cls, path: Path) -> Outcome:
        kept = json.loads(path.read_text())
        return cls(kept["passed"], kept["failed"], Counter(kept["counts"]))


class Series:
    """The outcome so far. What a schedule that fails leaves behind is moved to *evidence*."""

    def __init__(self, name: str, evidence: Path, limit_seconds: float) -> None:
        self._name = name
        self._evidence = evidence
        self._limit = limit_seconds
        self._began = time.monotonic()
        self._commit = commit()
        self.outcome = Outcome()

    def run(self, seed: int, schedule: Schedule) -> bool:
        """Run one schedule in a folder of its own; return whether all held."""
        began = time.monotonic()
        folder = Path(tempfile.mkdtemp(prefix=f"vf-chaos-{seed}-"))
        try:
            with _limited(self._limit, folder):
                counts = schedule(seed, folder)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._keep(seed, folder, error)
            return False
        self.outcome.counts += counts
        self.outcome.passed.append(seed)
        shutil.rmtree(folder, ignore_errors=True)
        seconds = time.monotonic() - began
        print(f"{self._name}, seed {seed}: all held, {seconds:.0f} s, {counts.total()} strikes", flush=True)
        return True

    def _keep(self, seed: int, folder: Path, error: BaseException) -> None:
        (folder / "why.txt").write_text("".join(traceback.format_exception(error)))
        kept = self._evidence / f"{self._name}-{seed}"
        shutil.rmtree(kept, ignore_errors=True)
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(folder, kept, symlinks=True, ignore=_no_files)
        shutil.rmtree(folder, ignore_errors=True)
        why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        self.outcome.failed[str(seed)] = why
        print(f"{self._name}, seed {seed} FAILED: {why}; evidence: {kept}", file=sys.stderr, flush=True)

    def report(self) -> str:
        """What was run, on which commit, and what came of it."""
        minutes = (time.monotonic() - self._began) / 60
        passed, failed, counts = self.outcome.passed, self.outcome.failed, self.outcome.counts
        seeds = [*passed, *map(int, failed)]
        edited = "" if commit() == self._commit else " (and edited meanwhile)"
        lines = [
            f"{self._name}: {len(seeds)} schedules, seeds {min(seeds, default=0)} to {max(seeds, default=0)}, "
            f"commit {self._commit}{edited}, {datetime.now():%Y-%m-%d %H:%M}, {minutes:.0f} minutes, "
            f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}",
            f"{len(passed)} held, {len(failed)} failed; {counts.total()} strikes that had an effect",
            *(f"{count:6d}  {kind}" for kind, count in sorted(counts.items())),
            *(f"FAILED seed {seed}: {why}" for seed, why in failed.items()),
        ]
        return "\n".join(lines)


def commit() -> str:
    """Of the code under test; marked if it was edited since."""
    command = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty", "--exclude", "*"]
    described = subprocess.run(command, capture_output=True, text=True, check=False)
    return described.stdout.strip() or "unknown"


@contextlib.contextmanager
def _limited(seconds: float, folder: Path) -> Iterator[None]:
    """Raise Hung in the middle of whatever takes longer, after writing down where this process is."""

    def on_alarm(*_: object) -> None:
        with (folder / "where.txt").open("w") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.write("\n".join(f"{pid} {_described(pid)}" for pid in carrying(str(folder))))
        raise Hung(f"not through after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds, 10.0)  # again, if the first one is swallowed
    faulthandler.dump_traceback_later(seconds + 300, exit=True)  # if not even that has an effect
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


def carrying(mark: str) -> list[int]:
    """Processes with *mark* in their environment or command."""
    result = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            if mark.encode() in text and int(entry.name) != os.getpid() and alive(int(entry.name)):
                result.append(int(entry.name))
    return result


def assert_no_orphans(mark: str, spared: Callable[[], set[int]] = set) -> None:
    """Of all processes that carry *mark*, only those that are *spared* are left, soon."""
    deadline = time.monotonic() + ORPHAN_SECONDS
    while left := set(carrying(mark)) - spared():
        told = "; ".join(f"{pid} {_described(pid)}" for pid in left)
        assert time.monotonic() < deadline, f"left behind: {told}"
        time.sleep(0.05)


def _described(pid: int) -> str:
    with contextlib.suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return f"({Path(f'/proc/{pid}/wchan').read_text()}) {command[:200]}"
    return "(gone)"


def _no_files(folder: str, names: list[str]) -> set[str]:
    """Sockets and the like, which can't be copied."""
    paths = {name: Path(folder, name) for name in names}
    return {name for name, path in paths.items() if not (path.is_file() or path.is_dir() or path.is_symlink())}
