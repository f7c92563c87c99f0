"""A job's folder: what it was told, what it is doing, what it leaves behind."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from virtualflow.errors import DamagedError, LaunchError
from virtualflow.job.lock_holders import holders_of_removed
from virtualflow.program.capture import take
from virtualflow.program.manifest import Program
from virtualflow.system import private_files
from virtualflow.system.hash_seed import hash_seed_of
from virtualflow.system.home import home

STATES = ("QUEUED", "STARTING", "RUNNING", "RESIZING", "PAUSED", "DONE", "FAILED", "CANCELLED")
UNKNOWN = "UNKNOWN"  # its state can't be read: nobody acts on that
ENDED = ("DONE", "FAILED", "CANCELLED")
AT_REST = (*ENDED, "QUEUED", "PAUSED")  # no coordinator runs a job in these
COUNTS = ("resizes", "failures", "remaps", "overran_waves")  # since the job began, whoever has run it
LAUNCH_SECONDS = 60.0  # between `vf run` and its coordinator's first word
LOCK_SECONDS = 1.0  # a verb that only looks holds the lock for an instant


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job as ``vf run`` was told it."""

    job_id: str
    script: str
    arguments: tuple[str, ...]
    devices: tuple[str, ...]
    owners: tuple[int, ...] | None = None
    patience_seconds: float = 30.0
    threads_per_device: int = 1
    device_type: str = "auto"
    audit: bool = False
    replace_lost: bool = True
    checkpoint_every: int = 0
    listen: str | None = None  # HOST:PORT, for workers from other launchers
    token_file: str | None = None
    emulated: dict[str, dict[str, Any]] = field(default_factory=dict)  # by device: those that stand for others
    node_sizes: tuple[int, ...] | None = None  # a plan's
    workload: dict[str, Any] | None = None  # the profiles by which virtual nodes are mapped
    rebalance: bool = False
    profiling: dict[str, Any] | None = None
    pinned: dict[str, str] = field(default_factory=dict)  # by device: the machine that it is on, if that is decided
    managed: bool = False  # a manager says how many devices it has
    backend: str = "local"  # or "ray"
    from_checkpoint: str | None = None  # a file that the job goes on from, as long as it has none of its own
    hash_seed: str = field(default_factory=lambda: hash_seed_of(os.environ))


class JobFolder:
    """The files of one job, under ``$VF_HOME/jobs/ID``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.snapshot = path / "snapshot"
        self.control = path / "control.sock"
        self.failure = path / "failure.txt"
        self.launch = path / "launch.json"
        self.lock = path / "lock"

    @classmethod
    def of(cls, job_id: str) -> JobFolder:
        """The folder of a job that exists."""
        folder = cls(home() / "jobs" / job_id)
        if "/" in job_id or not folder._spec.is_file():
            known = ", ".join(sorted(f.path.name for f in all_jobs())[-5:]) or "none"
            raise LaunchError(f"there is no job {job_id!r} in {home()}. The newest ones: {known}.")
        return folder

    @property
    def _spec(self) -> Path:
        return self.path / "job.json"

    def create(self, spec: JobSpec, include: Sequence[str] = ()) -> Program:
        """Make the folder, with a snapshot of the script, of what it imports, and of the files that *include* names."""
        taken = take(Path(spec.script), include=include)
        self.make()
        write_json(self._spec, asdict(spec))
        self.write_launched()
        taken.write(self.snapshot)
        return taken.program

    def make(self, *, exist_ok: bool = True) -> None:
        """For its owner alone, with a lock in it that nobody holds: one that is missing later was removed."""
        private_files.make_folder(self.path.parent)
        self.path.mkdir(mode=0o700, exist_ok=exist_ok)
        private_files.close(self.path)
        self.lock.touch(0o600)

    def change(self, spec: JobSpec) -> None:
        """The job goes on in another way."""
        write_json(self._spec, asdict(spec))

    def spec(self) -> JobSpec:
        """What the job was told. Raises DamagedError if that can't be read any more."""
        fields = read_json(self._spec)
        lists = ("arguments", "devices", "owners", "node_sizes")
        try:
            checked: dict[str, Any] = {k: tuple(v) if k in lists and v is not None else v for k, v in fields.items()}
            return JobSpec(**checked)
        except TypeError as error:
            raise DamagedError(f"{self._spec} was written by another version, or is damaged: {error}") from error

    def write_state(self, state: dict[str, Any]) -> None:
        path = self.path / "state.json"
        try:
            write_json(path, state)
        except OSError:
            if not path.exists():
                raise
            # On a full disk there is still the room that it takes already; and how a job has ended must be known.
            with open(path, "r+", opener=private_files.regular_opener) as file:
                file.write(json.dumps(state))
                file.truncate()

    def write_launched(self) -> None:
        """A coordinator will be there soon."""
        launched = {"state": "STARTING", "workers": [], "generation": 0, "launched": time.time()}
        self.write_state(launched | self.read_counts())

    def read_state(self) -> dict[str, Any]:
        """What the job's coordinator, or else its manager, has told last. Raises OSError if that can't be read now."""
        running = self.is_locked()  # asked first: a job that ends meanwhile has written its last state by then
        try:
            state = self.written_state()
        except FileNotFoundError:
            state = {"state": "STARTING", "workers": [], "generation": 0}
        except DamagedError as error:
            return {"state": UNKNOWN, "workers": [], "generation": 0, "reason": str(error)}
        if state["state"] not in AT_REST and not running and time.time() - state.get("launched", 0) > LAUNCH_SECONDS:
            state |= {
                "state": "FAILED",
                "reason": "its coordinator is gone",
            }
        elif state["state"] == "FAILED" and (
            told := self.failure.read_text(errors="replace") if self.failure.exists() else ""
        ):
            state["reason"] = (told.strip().splitlines() or [""])[-1]
        return state

    def written_state(self) -> dict[str, Any]:
        """Just what was written. Raises FileNotFoundError, DamagedError, or another OSError if it can't be told now."""
        state = read_json(self.path / "state.json")
        workers = state.get("workers")
        listed = workers if isinstance(workers, list) else [None]
        named = all(isinstance(each, dict) and isinstance(each.get("device"), str) for each in listed)
        if not named or not isinstance(state.get("state"), str):
            raise DamagedError(f"{self.path / 'state.json'} is damaged: it does not say what state the job is in")
        return state

    def read_counts(self) -> dict[str, int]:
        """What a job's state keeps from one launch to the next."""
        state = self.read_state()
        counts = {name: state.get(name, 0) for name in COUNTS}
        return {name: count if isinstance(count, int) else 0 for name, count in counts.items()}

    def state_written(self) -> tuple[int, int] | None:
        """Changes whenever a state is written."""
        try:
            status = (self.path / "state.json").stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns

    def latest_checkpoint(self) -> Path | None:
        """The newest automatic checkpoint; what the job began from without one."""
        return max(self.automatic_checkpoints(), default=None) or self.began_from()

    def automatic_checkpoints(self) -> list[Path]:
        """Oldest first."""
        return sorted(self.checkpoints.glob("step-*.pt"))

    def began_from(self) -> Path | None:
        """The checkpoint of another job, or of the script's own, that this one was told to go on from."""
        try:
            given = self.spec().from_checkpoint
        except (OSError, DamagedError):  # others say so
            return None
        return Path(given) if given is not None else None

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Own the job: nobody else may run it meanwhile. Whoever has the descriptor yielded keeps it owned."""
        private_files.make_folder(self.path.parent)
        private_files.make_folder(self.path)
        with self.lock.open("w") as file:
            deadline = time.monotonic() + LOCK_SECONDS
            # Whoever still holds a lock whose file was removed runs the job as well.
            while not _taken(file.fileno(), fcntl.LOCK_EX) or holders_of_removed(self.lock):
                if time.monotonic() > deadline:
                    raise LaunchError(f"job {self.path.name} is running already; `vf status {self.path.name}` shows it")
                time.sleep(0.01)
            yield file.fileno()

    def is_locked(self) -> bool:
        """Whether a coordinator runs the job right now. Raises OSError if that can't be told: unknown is not "no"."""
        try:
            with open(self.lock, opener=private_files.regular_opener) as file:
                if not _taken(file.fileno(), fcntl.LOCK_SH):
                    return True
        except FileNotFoundError:
            return bool(holders_of_removed(self.lock))
        # The file may have been removed and made again: whoever runs the job then holds the old one.
        return not self._is_at_rest() and bool(holders_of_removed(self.lock))

    def _is_at_rest(self) -> bool:
        """Whether the job's state says that nobody runs it."""
        try:
            return self.written_state()["state"] in AT_REST
        except (OSError, DamagedError):
            return False


def _taken(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def all_jobs() -> list[JobFolder]:
    """Every job in ``$VF_HOME``, oldest first."""
    folders = sorted((home() / "jobs").glob("*"))
    return [JobFolder(folder) for folder in folders if (folder / "job.json").is_file()]


def read_json(path: Path) -> dict[str, Any]:
    """The object in the file at *path*. Raises DamagedError if there is something else in it."""
    try:
        with open(path, "rb", opener=private_files.regular_opener) as file:
            value = json.loads(file.read())
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise DamagedError(f"{path} is damaged: there is no JSON object in it")
    return value


def write_json(path: Path, value: Any) -> None:
    """Write *value* to *path*, whole or not at all, even if the machine loses its power in the middle."""
    partial = path.with_name(f".{path.name}.partial")
    with open(partial, "w", opener=private_files.opener) as file:
        file.write(json.dumps(value, indent=1))
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
