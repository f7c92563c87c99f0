"""Errors of single jobs: logged once, retried at every tick, and no other job's concern."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterable

_log = logging.getLogger(__name__)


class JobErrors:
    """The last error of each job that has one. *on_change* is called when a job has a new one."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._tracebacks: dict[str, str] = {}  # by job

    def for_each(self, action: Callable[[str], None], job_ids: Iterable[str]) -> list[str]:
        """Call *action* with each job; return those for which it raised no error."""
        succeeded = []
        for job_id in job_ids:
            try:
                action(job_id)
            except Exception:
                self._note(job_id, traceback.format_exc())
            else:
                self._tracebacks.pop(job_id, None)
                succeeded.append(job_id)
        return succeeded

    def last_line(self, job_id: str) -> str:
        """The message of a job's last error; empty if its last action went well."""
        return (self._tracebacks.get(job_id, "").strip().splitlines() or [""])[-1]

    def _note(self, job_id: str, text: str) -> None:
        if self._tracebacks.get(job_id) != text:
            _log.error("job %s:\n%s", job_id, text)
            self._on_change()
        self._tracebacks[job_id] = text
