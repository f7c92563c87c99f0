"""The part of the HTTP API that is about the API itself: who asks, tokens, links to sign in with, and the audit log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request

from virtualflow.manager.api.permissions import caller_of
from virtualflow.manager.api.request_bodies import NewToken
from virtualflow.manager.api.sessions import Sessions
from virtualflow.manager.api.views import View
from virtualflow.manager.audit_log import entries_in
from virtualflow.manager.token_book import Caller, TokenBook


def add_access(api: FastAPI, sessions: Sessions, book: TokenBook, folder: Path | None) -> None:
    """*folder*: where the audit log is kept, if one is."""
    refusals: dict[int | str, View] = {409: {"description": "It can't be; the answer says why."}}

    @api.get("/api/caller")
    def caller(request: Request) -> View:
        """Whose token this request shows, its role, and of whom it submits jobs."""
        return _described(caller_of(request))

    @api.post("/api/login")
    def login(request: Request) -> dict[str, str]:
        """A code for a link to the page that works once: /login?code=... The page has the role of this token."""
        return {"code": sessions.one_time_code(caller_of(request))}

    @api.get("/api/tokens", responses=refusals)
    def tokens() -> list[View]:
        """All tokens but the manager's own, without their secrets."""
        return [_described(caller) for caller in book.others()]

    @api.post("/api/tokens", status_code=201, name="add token", responses=refusals)
    def add_token(body: NewToken) -> dict[str, str]:
        """Make a token. Its secret is in this answer, and nowhere else."""
        return {"token": book.add(body.name, body.role, body.owner)}

    @api.post("/api/tokens/{name}/remove", name="remove token", responses=refusals)
    def remove_token(name: str) -> dict[str, str]:
        """From now on it lets nobody in; sessions and streams that it has opened end."""
        book.remove(name)
        return {"removed": name}

    @api.get("/api/audit")
    def audit(since: Annotated[float, Query(ge=0, le=1e11)] = 0.0) -> View:
        """Who has changed what, and who was refused: the last entries since that time, in seconds since the epoch."""
        return entries_in(folder, since) if folder is not None else {"entries": [], "damaged": 0}


def _described(caller: Caller) -> dict[str, Any]:
    return {"name": caller.name, "role": str(caller.role), "owner": caller.owner}
