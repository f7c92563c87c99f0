"""Notices that a job has ended: to a web address or a command that its owner has named.

A notice is sent at least once: what was sent is in the records, so that a manager which is killed in between sends it
again under the next one. What can't be delivered is tried again for a few minutes, and given up with the reason.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import subprocess
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from virtualflow.errors import ManagerError
from virtualflow.manager.record import Record
from virtualflow.manager.records import Records

SENT = "sent"
MAX_TRIES = 5
FIRST_PAUSE_SECONDS = 5.0  # between two tries; twice as long after each
ANSWER_SECONDS = 10.0
COMMAND_SECONDS = 60.0
AT_A_TIME = 4

_log = logging.getLogger(__name__)

Deliver = Callable[[str, Mapping[str, Any], str], None]


@dataclass(slots=True)
class _Sending:
    tries: int = 0
    not_before: float = 0.0
    answer: Future[None] | None = None


class Notices:
    """*seconds* is the manager's clock. Nothing here waits: threads deliver, and a later look takes the outcome."""

    def __init__(self, records: Records, seconds: Callable[[], float], deliver: Deliver | None = None) -> None:
        self._records = records
        self._seconds = seconds
        self._deliver = deliver or _deliver
        self._sending: dict[str, _Sending] = {}
        self._threads = ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="notify")

    def look(self) -> None:
        """Send what is due."""
        for record in self._records.all():
            if record.is_over and record.terms.notify and not record.notice:
                self._see_to(record, self._sending.setdefault(record.id, _Sending()))

    def _see_to(self, record: Record, sending: _Sending) -> None:
        now = self._seconds()
        if sending.answer is None:
            if now >= sending.not_before:
                sending.tries += 1
                sending.answer = self._threads.submit(
                    self._deliver, record.terms.notify, notice_of(record), record.directory
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


def check(where: str) -> None:
    """Raises ManagerError for what is neither a web address nor a command."""
    if where.startswith(("http:", "https:")):
        try:
            address = urlsplit(where)
            is_whole = bool(address.hostname) and (address.port is None or address.port > 0)
        except ValueError:
            is_whole = False
        if not is_whole:
            raise ManagerError(f"{where!r} is not a web address that a notice can be sent to")
    if "\0" in where:
        raise ManagerError("a zero byte can be in no command")


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


def _deliver(where: str, notice: Mapping[str, Any], directory: str) -> None:
    """Raises OSError or ManagerError if it did not arrive."""
    body = json.dumps(notice).encode()
    if where.startswith(("http://", "https://")):
        _post(where, body)
        return
    names = {f"VF_JOB_{name.upper()}": str(notice[name]) for name in ("id", "name", "owner", "state", "text")}
    done = subprocess.run(
        ["sh", "-c", where],
        input=body,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=os.environ | names,
        cwd=directory if Path(directory).is_dir() else "/",
        timeout=COMMAND_SECONDS,
        start_new_session=True,
        check=False,
    )
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise ManagerError(f"its command ended with code {done.returncode}: {''.join(last)}")


def _post(address: str, body: bytes) -> None:
    where = urlsplit(address)
    kind = http.client.HTTPSConnection if where.scheme == "https" else http.client.HTTPConnection
    connection = kind(where.hostname or "", where.port, timeout=ANSWER_SECONDS)
    path = f"{where.path or '/'}{'?' if where.query else ''}{where.query}"
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
    except http.client.HTTPException as error:
        raise ManagerError(f"{where.hostname} answers with no HTTP: {type(error).__name__}") from error
    finally:
        connection.close()
    if answer.status >= 300:
        raise ManagerError(f"{where.hostname} answered {answer.status} {answer.reason}")
