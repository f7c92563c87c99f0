"""Copies of the manager's records, made by SQLite's own backup, and how one takes the records' place again."""

from __future__ import annotations

import logging
import math
import os
import shutil
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

from virtualflow.errors import RecordsError

DAY_SECONDS = 86400.0
LOOK_SECONDS = 60.0  # between two looks whether a copy is due
MAX_COPIES = 14  # for the same reason
DAILY = "daily"

_log = logging.getLogger(__name__)


class Backups:
    """The copies of the records at *records*, in a folder beside them that only its owner can read."""

    def __init__(self, records: Path) -> None:
        self._records = records
        self.folder = records.with_name("backups")
        self._looked = -math.inf
        self._making: threading.Thread | None = None

    def newest_first(self) -> list[Path]:
        return sorted(self.folder.glob("jobs-*.sqlite"), reverse=True)

    def is_due(self, now: float) -> bool:
        """Whether the newest daily copy is older than a day, or from a time that has not come yet."""
        newest = next((copy for copy in self.newest_first() if copy.stem.endswith(DAILY)), None)
        return newest is None or not 0 <= now - newest.stat().st_mtime < DAY_SECONDS

    def make_if_due(self, now: float) -> None:
        """Have a thread make a copy if none is younger than a day; that is looked at once a minute."""
        if abs(now - self._looked) < LOOK_SECONDS or (self._making is not None and self._making.is_alive()):
            return
        self._looked = now
        if self.is_due(now):
            self._making = threading.Thread(target=self._make_and_log, name="backup", daemon=True)
            self._making.start()

    def wait(self) -> None:
        """Until the copy that is being made, if any, is complete."""
        if self._making is not None:
            self._making.join()

    def _make_and_log(self) -> None:
        try:
            _log.info("the records were copied to %s", self.make())
        except RecordsError as error:
            _log.error("%s", error)

    def make(self, why: str = DAILY) -> Path:
        """Copy the records as they are now, while others may go on to write them."""
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        target = self.folder / f"jobs-{stamp}-{why}.sqlite"
        partial = self.folder / f".{target.name}.partial"
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            partial.unlink(missing_ok=True)
            os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
            source = sqlite3.connect(f"{self._records.as_uri()}?mode=ro", uri=True)
            with closing(source), closing(sqlite3.connect(partial)) as copy:
                source.backup(copy)
                copy.execute("PRAGMA journal_mode=DELETE")  # one file: no log and index beside it when it is read
            wrong = damage(partial)
            if wrong is not None:
                raise RecordsError(f"the records can't be copied: {wrong}")
            partial.replace(target)
        except (OSError, sqlite3.Error) as error:
            partial.unlink(missing_ok=True)
            raise RecordsError(f"the records can't be copied to {self.folder}: {error}") from error
        for old in [copy for copy in self.newest_first() if copy.stem.endswith(why)][MAX_COPIES:]:
            old.unlink()
        return target

    def newest_whole(self) -> Path | None:
        """The newest copy that can be read."""
        return next((copy for copy in self.newest_first() if damage(copy) is None), None)

    def restore(self, backup: Path) -> Path:
        """Put *backup* in the records' place, and move those aside; return to where. No manager may run meanwhile."""
        if not backup.is_file():
            raise RecordsError(f"there is no backup {backup}")
        if (wrong := damage(backup)) is not None:
            raise RecordsError(f"{backup} is damaged, too: {wrong}")
        aside = self._records.with_name(f"{self._records.name}.replaced-{time.strftime('%Y%m%d-%H%M%S')}")
        partial = self._records.with_name(f".{self._records.name}.partial")
        shutil.copyfile(backup, partial)
        partial.chmod(0o600)
        for suffix in ("", "-wal", "-shm"):  # a log of the old records must not be applied to others
            old = self._records.with_name(self._records.name + suffix)
            if old.exists():
                old.replace(aside.with_name(aside.name + suffix))
        partial.replace(self._records)
        return aside


def damage(path: Path) -> str | None:
    """What is wrong with an SQLite file; None if nothing is."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        return str(error)
    return None if verdict == "ok" else str(verdict).splitlines()[-1]
