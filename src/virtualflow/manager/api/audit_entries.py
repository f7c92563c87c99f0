"""What the audit log has of a request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from starlette.types import Message, Scope

from virtualflow.manager.audit_log import AuditEntry
from virtualflow.manager.token_book import Caller

JOB = "vf.job"  # in a request's state: the job that it has made
SECRET = ("submit",)  # verbs whose requests may hold what is not for the log
MOST_WHY = 500  # characters
UNKNOWN = "unknown"


def entry_of(caller: Caller, scope: Scope, asked: bytes, answer: Sequence[Message], now: float) -> AuditEntry | None:
    """A request to change something, and its *answer*; None if there is nothing of that name to do."""
    route, given = scope.get("route"), scope.get("path_params", {})
    status = next((message["status"] for message in answer if message["type"] == "http.response.start"), 0)
    if route is None or status == 405:
        return None
    verb = route.name
    return AuditEntry(
        time=now,
        token=caller.name,
        role=caller.role,
        remote=_remote(scope),
        verb=verb,
        outcome=_outcome(status),
        job=given.get("job_id") or scope["state"].get(JOB, ""),
        on=given.get("name", ""),
        asked=_object(asked) if verb not in SECRET else {},
        why=_why(answer) if status >= 400 else "",
    )


def turned_away(caller: Caller | None, scope: Scope, why: str, now: float) -> AuditEntry:
    """A request to change something that was refused before anybody looked at what; a stranger's without a *caller*."""
    token, role = (caller.name, str(caller.role)) if caller is not None else ("", "")
    return AuditEntry(time=now, token=token, role=role, remote=_remote(scope), verb=UNKNOWN, outcome="refused", why=why)


def _remote(scope: Scope) -> str:
    return str((scope.get("client") or ("",))[0])


def _outcome(status: int) -> str:
    if 200 <= status < 400:
        return "done"
    return "refused" if 400 <= status < 500 else "failed"


def _why(answer: Sequence[Message]) -> str:
    detail = _object(b"".join(message.get("body", b"") for message in answer)).get("detail", "")
    return (detail if isinstance(detail, str) else json.dumps(detail))[:MOST_WHY]


def _object(text: bytes) -> dict[str, Any]:
    """A JSON object; nothing in place of anything else, or of one that was cut off."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
