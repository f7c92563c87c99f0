"""The manager's jobs, in memory and on disk. What a full disk does not take is kept and written later."""

from __future__ import annotations

import contextlib
from typing import Any

from virtualflow.errors import LedgerError, ManagerError, UnknownJobError
from virtualflow.manager.records import Ledger, Record


class Books:
    """Every change goes through here, so that ``version`` tells whether there is something new to see."""

    def __init__(self, ledger: Ledger) -> None:
        self.version = 0
        self._ledger = ledger
        self._records = {record.id: record for record in ledger.records()}
        self._unsaved: set[str] = set()
        self.backups = ledger.backups
        self.unreadable = ledger.unreadable
        self.trouble = ""  # why what has changed is not on disk yet

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._records

    def __getitem__(self, job_id: str) -> Record:
        if job_id not in self._records:
            newest = ", ".join(list(self._records)[-5:]) or "none"
            raise UnknownJobError(f"the manager has no job {job_id!r}. The newest ones: {newest}.")
        return self._records[job_id]

    def all(self) -> list[Record]:
        """In the order they were submitted."""
        return list(self._records.values())

    def running(self) -> list[Record]:
        """Jobs that were launched and have not ended."""
        return [record for record in self._records.values() if record.state == "RUNNING"]

    def unfinished(self, job_id: str) -> Record:
        """A job to which something can still be done."""
        record = self[job_id]
        if record.is_over or record.wish == "cancel":
            raise ManagerError(
                f"job {job_id} has ended: its state is {record.state if record.is_over else 'CANCELLED'}"
            )
        return record

    def add(self, record: Record) -> None:
        """A new job. Raises LedgerError, and forgets it, if it can't be written down."""
        self._ledger.save(record)
        self._records[record.id] = record
        self.version += 1

    def add_running(self, record: Record) -> None:
        """A job that runs already, whether that can be written down now or not."""
        self._records[record.id] = record
        self.save([record])

    def update(self, record: Record, **facts: Any) -> None:
        for name, value in facts.items():
            setattr(record, name, value)
        self.save([record])

    def save(self, records: list[Record]) -> None:
        """Write down what has changed of them, all or nothing; a full disk stops no job."""
        self.version += 1
        if not records:
            return
        ids = {record.id for record in records}
        try:
            self._ledger.save(*records)
            self._unsaved -= ids
            self.trouble = ""
        except LedgerError as error:
            self._unsaved |= ids
            self.trouble = str(error)

    def save_the_rest(self) -> None:
        """What could not be written before."""
        if self._unsaved:
            self.save([self._records[job_id] for job_id in self._unsaved])

    def is_saved(self, record: Record) -> bool:
        return record.id not in self._unsaved

    def chart(self, job_id: str, devices: tuple[str, ...], now: float) -> None:
        """A job has just these devices from now on."""
        self.version += 1
        with contextlib.suppress(LedgerError):  # a gap in a chart
            self._ledger.holds(job_id, list(devices), now)

    def segments(self) -> list[dict[str, Any]]:
        """Who had which devices, and when."""
        return self._ledger.segments()

    def lose(self, devices: tuple[str, ...]) -> None:
        with contextlib.suppress(LedgerError):  # gone they are, even if that can't be written down
            self._ledger.lose(devices)

    def give_back(self, devices: tuple[str, ...]) -> None:
        self._ledger.give_back(devices)

    def lost(self) -> set[str]:
        """Devices that were taken out and not given back."""
        return self._ledger.lost()
