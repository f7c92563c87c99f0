"""What the manager must not forget: jobs, who had which devices when, and which are gone, in one SQLite file."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from virtualflow import __version__
from virtualflow.errors import LedgerError
from virtualflow.job.folder import ENDED, STATES
from virtualflow.manager.backups import Backups

SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (id TEXT PRIMARY KEY, ended INTEGER NOT NULL, record TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS segments (
    job TEXT NOT NULL, begin REAL NOT NULL, end REAL, devices TEXT NOT NULL, PRIMARY KEY (job, begin));
CREATE TABLE IF NOT EXISTS lost (device TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS written (by TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS open_segments ON segments (job) WHERE end IS NULL;
"""
FORMAT = 1  # of the tables: SQLite keeps this number
MOST_SEGMENTS = 5000  # that are shown


@dataclass(slots=True)
class Record:
    """One submitted job: what its owner asked for, and how far it has come."""

    id: str
    name: str
    script: str
    arguments: list[str]
    directory: str
    environment: dict[str, str]  # not written here, but in the job's folder until it is over
    interpreter: str
    priority: float
    demand: int
    least: int
    submitted: float  # seconds since the epoch, as all times here
    virtual_nodes: int | None = None  # as told, or learnt when it runs
    expect_seconds: float | None = None  # on the full demand
    retries: int = 0
    checkpoint_every: int = 0
    emulated: dict[str, dict[str, Any]] = field(default_factory=dict)  # by device type, for this job alone
    cap: int | None = None  # devices, at most, until `resize JOB auto`
    state: str = "QUEUED"
    wish: str | None = None  # why it is being stopped: pause, cancel, suspend, down
    devices: list[str] = field(default_factory=list)  # what the scheduler has given it
    beside: str | None = None  # the job whose devices it shares
    launches: int = 0
    token: str | None = None  # of the last launch
    crashes: int = 0  # of its coordinator, since it last made a step
    last_step: int = 0
    failed: int = 0
    resizes: int = 0
    failures: int = 0
    started: float | None = None
    ended: float | None = None
    run_seconds: float = 0.0  # before the present launch
    launched: float | None = None
    failure: str | None = None
    trouble: str | None = None  # why it was put to rest without having been asked for

    @property
    def is_over(self) -> bool:
        return self.state in ENDED

    @property
    def wants(self) -> int:
        """Devices that it can use."""
        return min(each for each in (self.demand, self.cap, self.virtual_nodes) if each is not None)


class Ledger:
    """Every change is on disk before anybody acts on it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.backups = Backups(path.absolute())
        self.unreadable: list[str] = []  # jobs whose records are damaged: they are left as they are
        with self._explained():
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
        try:
            path.chmod(0o600)  # the jobs' arguments are in it
            self._open()
        except BaseException:
            self._connection.close()
            raise

    def _open(self) -> None:
        with self._explained():
            (told,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
            if told != "ok":
                raise sqlite3.DatabaseError(str(told).splitlines()[-1])
            (number,) = self._connection.execute("PRAGMA user_version").fetchone()
            if number > FORMAT:
                raise LedgerError(f"{self.path} was written by a newer version of VirtualFlow: use that one")
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=FULL")
            self._connection.execute("PRAGMA secure_delete=ON")  # older versions kept the jobs' variables here
            before = self._last_writer()
            if before is not None and before != __version__:
                self.backups.make(f"before-{__version__}")
            self._connection.executescript(SCHEMA)
            if before != __version__:
                with self._transaction():
                    self._connection.execute("DELETE FROM written")
                    self._connection.execute("INSERT INTO written VALUES (?)", (__version__,))
                    self._connection.execute(f"PRAGMA user_version={FORMAT}")

    def _last_writer(self) -> str | None:
        """The version that has written the records before; None if they are new."""
        tables = {name for (name,) in self._connection.execute("SELECT name FROM sqlite_master WHERE type='table'")}
        if "written" not in tables:
            return "an older version" if "jobs" in tables else None
        row = self._connection.execute("SELECT by FROM written").fetchone()
        return str(row[0]) if row is not None else "an older version"

    def close(self) -> None:
        self._connection.close()

    def save(self, *records: Record) -> None:
        """All of them or none."""
        with self._transaction():
            self._connection.executemany(
                "INSERT INTO jobs VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET ended=excluded.ended, "
                "record=excluded.record",
                [(record.id, record.is_over, _text(record)) for record in records],
            )

    def records(self) -> list[Record]:
        """All jobs, oldest first, but for those whose records are damaged."""
        with self._explained():
            rows = self._connection.execute("SELECT id, record FROM jobs ORDER BY rowid").fetchall()
        found = []
        for job_id, text in rows:
            try:
                found.append(record_from(json.loads(text)))
            except (TypeError, ValueError, AttributeError):
                self.unreadable.append(str(job_id))
        return found

    def holds(self, job: str, devices: list[str], now: float) -> None:
        """A job has just these devices from now on."""
        with self._transaction():
            query = "SELECT devices FROM segments WHERE job=? AND end IS NULL"
            if devices and self._connection.execute(query, (job,)).fetchone() == (json.dumps(devices),):
                return  # as another manager has written before
            self._connection.execute("UPDATE segments SET end=MAX(begin, ?) WHERE job=? AND end IS NULL", (now, job))
            if devices:
                row = (job, now, None, json.dumps(devices))
                self._connection.execute("INSERT OR REPLACE INTO segments VALUES (?, ?, ?, ?)", row)

    def lose(self, devices: Iterable[str]) -> None:
        with self._transaction():
            self._connection.executemany("INSERT OR IGNORE INTO lost VALUES (?)", [(each,) for each in devices])

    def give_back(self, devices: Iterable[str]) -> None:
        with self._transaction():
            self._connection.executemany("DELETE FROM lost WHERE device=?", [(each,) for each in devices])

    def lost(self) -> set[str]:
        """Devices that were taken out and not given back."""
        with self._explained():
            return {device for (device,) in self._connection.execute("SELECT device FROM lost")}

    def segments(self) -> list[dict[str, Any]]:
        """Who had which devices, and when; the newest ones, in order."""
        query = "SELECT job, begin, end, devices FROM segments ORDER BY begin DESC LIMIT ?"
        with self._explained():
            rows = self._connection.execute(query, (MOST_SEGMENTS,)).fetchall()
        return [
            {"job": job, "begin": begin, "end": end, "devices": json.loads(devices)}
            for job, begin, end, devices in reversed(rows)
        ]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._explained():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:  # no room, no permission, no answer from the disk
            raise LedgerError(f"the manager's records {self.path} can't be read or written: {error}") from error
        except sqlite3.Error as error:
            raise LedgerError(f"the manager's records {self.path} are damaged: {error}. {self._advice()}") from error

    def _advice(self) -> str:
        whole = self.backups.newest_whole()
        if whole is None:
            return (
                "There is no backup. Move the file away to begin without it: jobs that run are found again, and "
                "`vf cluster orphans` lists the others."
            )
        return f"`vf cluster restore` puts the newest backup in their place: {whole}"


def record_from(told: dict[str, Any]) -> Record:
    """What was written down, by this version or another. Raises TypeError or ValueError if that makes no sense."""
    known = {each.name for each in fields(Record)}
    record = Record(**{name: value for name, value in told.items() if name in known})
    if not isinstance(record.state, str) or record.state not in STATES or not isinstance(record.id, str):
        raise ValueError(f"{record.state!r} is no state of a job")
    for value, kind in ((record.devices, list), (record.arguments, list), (record.environment, dict)):
        if not isinstance(value, kind):
            raise TypeError(f"{value!r} should be a {kind.__name__}")
    for number in (record.priority, record.demand, record.least, record.submitted):
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise TypeError(f"{number!r} should be a number")
    return record


def _text(record: Record) -> str:
    return json.dumps(asdict(record) | {"environment": {}})
