"""A job's folder: what is to be run, how it is doing, and what it leaves behind."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from virtualflow.core.job_description import JobDescription
from virtualflow.core.job_names import job_called
from virtualflow.core.job_state import JobState
from virtualflow.errors import DamagedError, LaunchError
from virtualflow.job.lock_holders import holders_of_removed
from virtualflow.job.status import JobStatus
from virtualflow.program.capture import take
from virtualflow.program.manifest import Program
from virtualflow.system import private_files
from virtualflow.system.hash_seed import hash_seed_of
from virtualflow.system.home import home

COUNTS = ("resizes", "failures", "remaps", "overran_waves")  # since the job began, over all coordinators
LAUNCH_SECONDS = 60.0  # between `vf run` and its coordinator's first word
LOCK_SECONDS = 1.0  # a verb that only looks holds the lock for an instant


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job and how it is to be launched: on which devices, by which backend, and who else may join."""

    job_id: str
    description: JobDescription
    devices: tuple[str, ...]
    patience_seconds: float = 30.0
    replace_lost: bool = True
    listen: str | None = None  # HOST:PORT, for workers from other launchers
    token_file: str | None = None
    tls_cert: str | None = None  # files of its owner's, by which those workers know it; None: this machine's own
    tls_key: str | None = None
    workload: dict[str, Any] | None = None  # the profiles by which virtual nodes are mapped
    rebalance: bool = False
    pinned: dict[str, str] = field(default_factory=dict)  # by device: the machine that it is on, if that is decided
    managed: bool = False  # a manager decides how many devices it has
    backend: str = "local"  # or "ray"
    resumable: bool = True  # False for what is made anew instead, such as a measurement

    @classmethod
    def of(cls, job_id: str, script: str, arguments: Sequence[str], devices: Sequence[str], **options: Any) -> JobSpec:
        """The spec with *options* of the description and of the launch."""
        described, launched = _split({"hash_seed": hash_seed_of(os.environ)} | options)
        return cls(job_id, JobDescription(script, tuple(arguments), **described), tuple(devices), **launched)

    def changed(self, **options: Any) -> JobSpec:
        """The same with other *options* of the description or of the launch."""
        described, launched = _split(options)
        return replace(self, description=replace(self.description, **described), **launched)


def _split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Those of the description, and those of the launch."""
    names = {option.name for option in fields(JobDescription)}
    described = {name: value for name, value in options.items() if name in names}
    return described, {name: value for name, value in options.items() if name not in names}


class JobFolder:
    """The files of one job, under ``$VF_HOME/jobs/ID``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.snapshot = path / "snapshot"
        self.control = path / "control.sock"
        self.failure = path / "failure.txt"
        self.launch = path / "launch.json"
        self.state = path / "state.json"
        self.lock = path / "lock"
        self._coordinator = path / "coordinator"

    @classmethod
    def of(cls, job: str) -> JobFolder:
        """The folder of a job that exists, by its id, the beginning of its id, or its name."""
        folder = cls(home() / "jobs" / job)
        if "/" not in job and folder._spec.is_file():
            return folder
        known = {folder.path.name: folder.title() for folder in all_jobs()}
        if (job_id := job_called(job, known)) is None:
            newest = ", ".join(sorted(known)[-5:]) or "none"
            raise LaunchError(f"there is no job {job!r} in {home()}. The newest ones: {newest}.")
        return cls(home() / "jobs" / job_id)

    def last_change(self) -> float:
        """When the job's state was last written: of a job that has ended, its end."""
        written = self.state_written()
        return written[1] / 1e9 if written is not None else self.path.stat().st_mtime

    def title(self) -> str:
        """The job's name; of a job whose description can't be read, nothing."""
        try:
            return self.spec().description.title
        except (OSError, DamagedError):
            return ""

    @property
    def _spec(self) -> Path:
        return self.path / "job.json"

    def create(self, spec: JobSpec, include: Sequence[str] = (), module: str = "") -> Program:
        """Make the folder, with a snapshot of the script, of what it imports, and of the files that *include* names.

        *module* is the script's full name, if it is to run as ``python -m`` runs one.
        """
        taken = take(Path(spec.description.script), include=include, module=module)
        self.make()
        write_json(self._spec, asdict(spec))
        self.write_launched()
        taken.write(self.snapshot)
        return taken.program

    def create_like(self, other: JobFolder, spec: JobSpec) -> None:
        """Make the folder, with the snapshot of another job."""
        self.make(exist_ok=False)
        write_json(self._spec, asdict(spec))
        self.write_launched()
        shutil.copytree(other.snapshot, self.snapshot)

    def make(self, *, exist_ok: bool = True) -> None:
        """Readable for its owner only, with a free lock in it: if the lock is missing later, it was removed."""
        private_files.make_folder(self.path.parent)
        self.path.mkdir(mode=0o700, exist_ok=exist_ok)
        private_files.close(self.path)
        self.lock.touch(0o600)

    def change(self, spec: JobSpec) -> None:
        """The job goes on in another way."""
        write_json(self._spec, asdict(spec))

    def spec(self) -> JobSpec:
        """The job and how it is launched. Raises DamagedError if that can't be read any more."""
        try:
            return msgspec.convert(read_json(self._spec), JobSpec)
        except msgspec.ValidationError as error:
            raise DamagedError(f"{self._spec} was written by another version, or is damaged: {error}") from error

    def write_state(self, status: JobStatus) -> None:
        path, state = self.state, status.as_json()
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
        self.write_state(JobStatus(JobState.STARTING, launched=time.time(), **self.read_counts()))

    def read_state(self) -> JobStatus:
        """What the job's coordinator or manager has written last. Raises OSError if that can't be read now."""
        running = self.is_locked()  # asked first: a job that ends meanwhile has written its last state by then
        try:
            status = self.written_state()
        except FileNotFoundError:
            status = JobStatus(JobState.STARTING)
        except DamagedError as error:
            return JobStatus(JobState.UNKNOWN, reason=str(error))
        if not status.state.is_at_rest and not running and time.time() - status.launched > LAUNCH_SECONDS:
            return structs.replace(status, state=JobState.FAILED, reason="its coordinator is gone")
        if status.state == JobState.FAILED and (
            text := self.failure.read_text(errors="replace") if self.failure.exists() else ""
        ):
            return structs.replace(status, reason=(text.strip().splitlines() or [""])[-1])
        return status

    def written_state(self) -> JobStatus:
        """Just what was written. Raises FileNotFoundError, DamagedError, or another OSError if it can't be read now."""
        try:
            return msgspec.convert(read_json(self.state), JobStatus)
        except msgspec.ValidationError as error:
            raise DamagedError(f"{self.state} is damaged: the job's state is not in it ({error})") from error

    def read_counts(self) -> dict[str, Any]:
        """What a job's state keeps from one launch to the next."""
        try:
            status = self.written_state()
        except (FileNotFoundError, DamagedError):
            status = JobStatus(JobState.STARTING)
        return {name: getattr(status, name) for name in COUNTS}

    def state_written(self) -> tuple[int, int] | None:
        """Changes whenever a state is written."""
        try:
            status = self.state.stat()
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
        """The checkpoint of another job, or of the script's own, that this one goes on from."""
        try:
            given = self.spec().description.from_checkpoint
        except (OSError, DamagedError):  # others report that
            return None
        return Path(given) if given is not None else None

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Own the job: no other process may run it meanwhile. Who inherits the yielded descriptor owns it, too."""
        private_files.make_folder(self.path.parent)
        private_files.make_folder(self.path)
        with self.lock.open("w") as file:
            deadline = time.monotonic() + LOCK_SECONDS
            # A process that still holds a lock whose file was removed runs the job as well.
            while not _taken(file.fileno(), fcntl.LOCK_EX) or holders_of_removed(self.lock):
                if time.monotonic() > deadline:
                    raise LaunchError(f"job {self.path.name} is running already; `vf status {self.path.name}` shows it")
                time.sleep(0.01)
            yield file.fileno()

    @contextmanager
    def coordinated(self) -> Iterator[None]:
        """Be the job's one coordinator. The caller owns the job, as do its workers, who never hold this lock."""
        with open(self._coordinator, "w", opener=private_files.opener) as file:
            deadline = time.monotonic() + LOCK_SECONDS
            while not _taken(file.fileno(), fcntl.LOCK_EX):
                if time.monotonic() > deadline:
                    raise LaunchError(f"job {self.path.name} has a coordinator already")
                time.sleep(0.01)
            yield

    def is_coordinated(self) -> bool:
        """Whether a coordinator lives, even if it does not answer. Raises OSError if that can't be seen."""
        try:
            with open(self._coordinator, opener=private_files.regular_opener) as file:
                return not _taken(file.fileno(), fcntl.LOCK_SH)
        except FileNotFoundError:
            return False

    def is_locked(self) -> bool:
        """Whether a coordinator runs the job right now. Raises OSError if that can't be seen: unknown is not "no"."""
        try:
            with open(self.lock, opener=private_files.regular_opener) as file:
                if not _taken(file.fileno(), fcntl.LOCK_SH):
                    return True
        except FileNotFoundError:
            return bool(holders_of_removed(self.lock))
        # The file may have been removed and made again: the process that runs the job then holds the old one.
        return not self._is_at_rest() and bool(holders_of_removed(self.lock))

    def _is_at_rest(self) -> bool:
        """Whether the job's state says that no process runs it."""
        try:
            return self.written_state().state.is_at_rest
        except (OSError, DamagedError):
            return False


def _taken(descriptor: int, lock: int) -> bool:
    try:
        fcntl.flock(descriptor, lock | fcntl.LOCK_NB)
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
