"""Notices that a job has ended: to a web address or a command that its owner has named.

A notice is sent at least once: what was sent is in the records, so that a manager which is killed in between sends it
again under the next one. What can't be delivered is tried again for a few minutes, and given up with the reason.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from virtualflow.manager.notice_sender import send
from virtualflow.manager.record import Record
from virtualflow.manager.records import Records

SENT = "sent"
MAX_TRIES = 5
FIRST_PAUSE_SECONDS = 5.0  # between two tries; twice as long after each
AT_A_TIME = 4

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Sending:
    tries: int = 0
    not_before: float = 0.0
    answer: Future[None] | None = None


class Notices:
    """*seconds* is the manager's clock. Nothing here waits: threads deliver, and a later look takes the outcome."""

    def __init__(self, records: Records, seconds: Callable[[], float]) -> None:
        self._records = records
        self._seconds = seconds
        self._sending: dict[str, _Sending] = {}
        self._over = threading.Event()
        self._threads = ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="notify")

    def look(self) -> None:
        """Send what is due."""
        for record in self._records.all():
            if record.is_over and record.terms.notify and not record.notice:
                self._see_to(record, self._sending.setdefault(record.id, _Sending()))

    def close(self) -> None:
        """Give up what is under way: the next manager sends it again."""
        self._over.set()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _see_to(self, record: Record, sending: _Sending) -> None:
        now = self._seconds()
        if sending.answer is None:
            if now >= sending.not_before:
                sending.tries += 1
                sending.answer = self._threads.submit(
                    send, record.terms.notify, notice_of(record), record.directory, self._over
                )
            return
        if not sending.answer.done():
            return
        error, sending.answer = sending.answer.exception(), None
        if error is not None and sending.tries < MAX_TRIES:
            sending.not_before = now + FIRST_PAUSE_SECONDS * 2 ** (sending.tries - 1)
            return
        if error is not None:
            _log.warning("job %s: its owner could not be notified: %s", record.id, error)
        self._records.update(record.id, notice=SENT if error is None else f"could not be delivered: {error}")
        del self._sending[record.id]


def notice_of(record: Record) -> dict[str, Any]:
    """What is sent. Chat programs show *text*."""
    why = f": {record.failure.strip().splitlines()[-1]}" if record.failure else ""
    return {
        "text": f"{record.name} ({record.id}) is {record.state}{why}",
        "id": record.id,
        "name": record.name,
        "owner": record.terms.owner,
        "state": record.state,
        "failure": record.failure,
        "submitted": record.submitted,
        "started": record.started,
        "ended": record.ended,
    }
