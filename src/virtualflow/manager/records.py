"""What the manager must not forget: jobs, who had which devices when, and which are gone, in one SQLite file.

Jobs are held in memory and on disk. What a full disk does not take is kept and written later.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from virtualflow import __version__
from virtualflow.core.job_state import JobState
from virtualflow.errors import ManagerError, RecordsError, UnknownJobError
from virtualflow.manager import record as recorded
from virtualflow.manager.backups import Backups
from virtualflow.manager.record import Record, Wish
from virtualflow.manager.windows import Window

SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (id TEXT PRIMARY KEY, ended INTEGER NOT NULL, record TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS segments (
    job TEXT NOT NULL, begin REAL NOT NULL, end REAL, devices TEXT NOT NULL, PRIMARY KEY (job, begin));
CREATE TABLE IF NOT EXISTS lost (device TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS windows (
    device TEXT NOT NULL, begin REAL NOT NULL, end REAL NOT NULL, drained INTEGER NOT NULL,
    PRIMARY KEY (device, begin));
CREATE TABLE IF NOT EXISTS written (by TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS open_segments ON segments (job) WHERE end IS NULL;
"""
FORMAT = 3  # of the tables and of the records in them: SQLite keeps this number
MAX_SEGMENTS = 5000  # that are shown


class Records:
    """Every change is on disk before it is acted upon, and ``version`` grows with it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.version = 0
        self.backups = Backups(path.absolute())
        self.unreadable: list[str] = []  # jobs whose records are damaged: they are left as they are
        self.problem = ""  # why what has changed is not on disk yet
        self._unsaved: set[str] = set()
        with self._explained():
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
        try:
            path.chmod(0o600)  # the jobs' arguments are in it
            self._open()
            self._records = {record.id: record for record in self._read()}
            rows = self._connection.execute("SELECT device, begin, end, drained FROM windows ORDER BY begin").fetchall()
            self._windows = {(row[0], row[1]): Window(row[0], row[1], row[2], bool(row[3])) for row in rows}
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        self.backups.wait()
        self._connection.close()

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._records

    def __getitem__(self, job_id: str) -> Record:
        if job_id not in self._records:
            newest = ", ".join(list(self._records)[-5:]) or "none"
            raise UnknownJobError(f"the manager has no job {job_id!r}. The newest ones: {newest}.")
        return self._records[job_id]

    def find(self, job_id: str) -> Record | None:
        return self._records.get(job_id)

    def all(self) -> list[Record]:
        """In the order they were submitted."""
        return list(self._records.values())

    def running(self) -> list[Record]:
        """Jobs that were launched and have not ended."""
        return [record for record in self._records.values() if record.state == JobState.RUNNING]

    def unfinished(self, job_id: str) -> Record:
        """A job to which something can still be done."""
        record = self[job_id]
        if record.is_over or record.wish == Wish.CANCEL:
            raise ManagerError(
                f"job {job_id} has ended: its state is {record.state if record.is_over else JobState.CANCELLED}"
            )
        return record

    def add(self, record: Record) -> None:
        """A new job. Raises RecordsError, and forgets it, if it can't be written."""
        self._write([record])
        self._records[record.id] = record
        self.version += 1

    def update(self, job_id: str, **facts: Any) -> Record:
        """The job's record with other *facts*, which is saved if it differs."""
        record = self[job_id].changed(**facts)
        if record != self[job_id]:
            self.save([record])
        return record

    def save(self, records: Sequence[Record]) -> None:
        """Put these in the place of the jobs' records, on disk all or none; a full disk stops no job."""
        self.version += 1
        if not records:
            return
        self._records.update((record.id, record) for record in records)
        ids = {record.id for record in records}
        try:
            self._write(records)
            self._unsaved -= ids
            self.problem = ""
        except RecordsError as error:
            self._unsaved |= ids
            self.problem = str(error)

    def save_the_rest(self) -> None:
        """Write what could not be written before."""
        if self._unsaved:
            self.save([self._records[job_id] for job_id in self._unsaved])

    def mark_changed(self) -> None:
        """Raise ``version`` for a change beside the records, so that pages show it."""
        self.version += 1

    def is_saved(self, job_id: str) -> bool:
        return job_id not in self._unsaved

    def note_devices(self, job_id: str, devices: tuple[str, ...], now: float) -> None:
        """A job has just these devices from now on."""
        self.version += 1
        with contextlib.suppress(RecordsError), self._transaction():  # without it there is a gap in a chart
            query = "SELECT devices FROM segments WHERE job=? AND end IS NULL"
            if devices and self._connection.execute(query, (job_id,)).fetchone() == (json.dumps(devices),):
                return  # as another manager has written before
            self._connection.execute("UPDATE segments SET end=MAX(begin, ?) WHERE job=? AND end IS NULL", (now, job_id))
            if devices:
                row = (job_id, now, None, json.dumps(devices))
                self._connection.execute("INSERT OR REPLACE INTO segments VALUES (?, ?, ?, ?)", row)

    def allocations(self) -> list[tuple[str, float, float | None, list[str]]]:
        """Which job had devices from when to when, and which ones; the newest ones, in order."""
        query = "SELECT job, begin, end, devices FROM segments ORDER BY begin DESC LIMIT ?"
        with self._explained():
            rows = self._connection.execute(query, (MAX_SEGMENTS,)).fetchall()
        return [(job, begin, end, json.loads(devices)) for job, begin, end, devices in reversed(rows)]

    def allocations_of(self, jobs: Collection[str]) -> list[tuple[str, float, float | None, list[str]]]:
        """All that these jobs ever had, in order."""
        query = "SELECT job, begin, end, devices FROM segments ORDER BY begin"
        with self._explained():
            rows = self._connection.execute(query).fetchall()
        return [(job, begin, end, json.loads(devices)) for job, begin, end, devices in rows if job in jobs]

    def attained(self, now: float) -> dict[str, float]:
        """The device-seconds that each job has had."""
        service = "SUM(MAX(0, COALESCE(end, ?) - begin) * json_array_length(devices))"
        with contextlib.suppress(RecordsError), self._explained():  # without it, all begin at nothing
            return dict(
                self._connection.execute(f"SELECT job, {service} FROM segments GROUP BY job", (now,)).fetchall()
            )
        return {}

    def lose(self, devices: Iterable[str]) -> None:
        """Devices were taken out: they are gone even if that can't be written."""
        with contextlib.suppress(RecordsError), self._transaction():
            self._connection.executemany("INSERT OR IGNORE INTO lost VALUES (?)", [(name,) for name in devices])

    def give_back(self, devices: Iterable[str]) -> None:
        with self._transaction():
            self._connection.executemany("DELETE FROM lost WHERE device=?", [(name,) for name in devices])

    @property
    def windows(self) -> list[Window]:
        """Maintenance windows that are not over."""
        return list(self._windows.values())

    def set_window(self, window: Window) -> None:
        """A new window, or one in the place of another of the device with the same begin."""
        with self._transaction():
            row = (window.device, window.begin, window.end, window.drained)
            self._connection.execute("INSERT OR REPLACE INTO windows VALUES (?, ?, ?, ?)", row)
        self._windows[window.device, window.begin] = window
        self.version += 1

    def drop_windows(self, windows: Iterable[Window]) -> None:
        for window in windows:
            with self._transaction():
                row = (window.device, window.begin)
                self._connection.execute("DELETE FROM windows WHERE device=? AND begin=?", row)
            del self._windows[window.device, window.begin]
            self.version += 1

    def lost(self) -> set[str]:
        """Devices that were taken out and not given back."""
        with self._explained():
            return {device for (device,) in self._connection.execute("SELECT device FROM lost")}

    def _write(self, records: Sequence[Record]) -> None:
        """All of them or none."""
        with self._transaction():
            self._connection.executemany(
                "INSERT INTO jobs VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET ended=excluded.ended, "
                "record=excluded.record",
                [(record.id, record.is_over, recorded.to_json(record)) for record in records],
            )

    def _read(self) -> Iterator[Record]:
        """All jobs, oldest first, but for those whose records are damaged."""
        with self._explained():
            rows = self._connection.execute("SELECT id, record FROM jobs ORDER BY rowid").fetchall()
        for job_id, text in rows:
            try:
                yield recorded.from_json(text)
            except (ValueError, RecursionError):
                self.unreadable.append(str(job_id))

    def _open(self) -> None:
        with self._explained():
            (verdict,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise sqlite3.DatabaseError(str(verdict).splitlines()[-1])
            (number,) = self._connection.execute("PRAGMA user_version").fetchone()
            writer = self._last_writer()
            if number > FORMAT:
                raise RecordsError(f"{self.path} was written by a newer version of VirtualFlow: use that one")
            if writer is not None and number < FORMAT:
                raise RecordsError(
                    f"{self.path} was written by an older version of VirtualFlow, {writer}. Let its jobs end with that "
                    "version, then move the file away."
                )
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=FULL")
            if writer is not None and writer != __version__:
                self.backups.make(f"before-{__version__}")
            self._connection.executescript(SCHEMA)
            if writer != __version__:
                with self._transaction():
                    self._connection.execute("DELETE FROM written")
                    self._connection.execute("INSERT INTO written VALUES (?)", (__version__,))
                    self._connection.execute(f"PRAGMA user_version={FORMAT}")

    def _last_writer(self) -> str | None:
        """The version that has written the records before; None if they are new."""
        tables = {name for (name,) in self._connection.execute("SELECT name FROM sqlite_master WHERE type='table'")}
        row = self._connection.execute("SELECT by FROM written").fetchone() if "written" in tables else None
        return str(row[0]) if row is not None else "unknown" if "jobs" in tables else None

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
            raise RecordsError(f"the manager's records {self.path} can't be read or written: {error}") from error
        except sqlite3.Error as error:
            raise RecordsError(f"the manager's records {self.path} are damaged: {error}. {self._advice()}") from error

    def _advice(self) -> str:
        whole = self.backups.newest_whole()
        if whole is None:
            return (
                "There is no backup. Move the file away to begin without it: jobs that run are found again, and "
                "`vf cluster orphans` lists the others."
            )
        return f"`vf cluster restore` puts the newest backup in their place: {whole}"
