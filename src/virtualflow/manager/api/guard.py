"""Who may talk to the server: clients with a token, and browsers with a session that a one-time link has opened.

All others get no answer, not even which paths exist. What those may do who are let in is for ``permissions`` to say;
what they have changed, or wanted to, is written to the audit log before they are answered.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from virtualflow.manager.api.audit_entries import entry_of, turned_away
from virtualflow.manager.api.connections import ADMIT
from virtualflow.manager.api.permissions import CALLER, READ
from virtualflow.manager.api.sessions import KEY_HEADER, SESSION_SECONDS, Session, Sessions
from virtualflow.manager.audit_log import AuditLog
from virtualflow.manager.token_book import Caller, TokenBook

COOKIE = "vf_session"
MOST_BYTES = 32 << 20  # of a request: a snapshot of a script and its modules
POLICY = (
    "default-src 'self'; img-src 'self' data:; style-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"cross-origin-resource-policy", b"same-origin"),  # the server of another port is another site
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
SIGN_IN = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>VirtualFlow: sign in</title>
<h1>You are not signed in</h1>
<p>Run <code>vf dashboard</code> where the manager runs, and open the link that it prints. Each link works once, for one
browser; after that this address lets the browser in.</p>
<p>For a job that was started with <code>vf run --dashboard</code>, open the link that it has printed.</p>
<p>Is this browser on another machine? Forward the port first, and then open the link here:<br>
<code>ssh -L PORT:127.0.0.1:PORT USER@HOST</code></p>
</html>
"""
PAGE = ("/", "/docs", "/openapi.json")  # what a browser opens by itself, and which shows no job
FILES = "/static/"
TOO_LARGE = "the request is larger than 32 MB"
MOST_ASKED = 1000  # bytes of a request's body that the log may have


class Guard:
    """Lets requests through to *app*."""

    def __init__(self, app: ASGIApp, book: TokenBook, log: AuditLog) -> None:
        self._app = app
        self._book = book
        self._log = log
        self.sessions = Sessions()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # uvicorn is told that there is nothing else
        headers = dict(scope["headers"])
        if (caller := self._caller(headers)) is not None:
            await self._pass(caller, scope, receive, send, headers)
        elif scope["path"] == "/login" and scope["method"] == "GET" and (opened := self._login(scope, headers)):
            # Behind the #, so that it stays in the browser.
            where = f"/#session={opened.key}".encode()
            await _answer(send, 303, [(b"location", where), (b"set-cookie", _cookie(scope, opened)), *HEADERS])
        elif (session := self._session(scope)) is None:
            self._turn_away(None, scope, "no token")
            await _refuse(scope, send, headers)
        elif (refusal := _refusal(session, scope, headers)) is not None:
            self._turn_away(session.caller, scope, refusal)
            await _answer(send, 403, [(b"content-type", b"application/json")], json.dumps({"detail": refusal}).encode())
        else:
            await self._pass_for_now(session, scope, receive, send, headers)

    def _turn_away(self, caller: Caller | None, scope: Scope, why: str) -> None:
        if scope["method"] not in READ:
            self._log.note(turned_away(caller, scope, why, self._log.clock()))

    def _caller(self, headers: dict[bytes, bytes]) -> Caller | None:
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        return self._book.caller(token.strip()) if scheme.lower() == b"bearer" else None

    def _login(self, scope: Scope, headers: dict[bytes, bytes]) -> Session | None:
        code = parse_qs(scope["query_string"].decode("latin-1")).get("code", [""])[0]
        session = self.sessions.open(code, headers.get(b"host", b"").decode("latin-1"))
        return session if session is not None and self._book.knows(session.caller) else None

    def _session(self, scope: Scope) -> Session | None:
        """A browser's, as long as the token is good with which it has signed in."""
        session = self.sessions.find(_cookies(scope))
        return session if session is not None and self._book.knows(session.caller) else None

    async def _pass_for_now(
        self, session: Session, scope: Scope, receive: Receive, send: Send, headers: dict[bytes, bytes]
    ) -> None:
        """A stream ends with the session that has asked for it."""
        under_way = False

        async def watched(message: Message) -> None:
            nonlocal under_way
            await send(message)
            under_way = message["type"] == "http.response.start" or bool(message.get("more_body"))

        try:
            async with asyncio.timeout(self.sessions.seconds_left(session)):
                await self._pass(session.caller, scope, receive, watched, headers)
        except TimeoutError:
            if under_way:
                await send({"type": "http.response.body", "body": b""})

    async def _pass(
        self, caller: Caller, scope: Scope, receive: Receive, send: Send, headers: dict[bytes, bytes]
    ) -> None:
        state = scope.setdefault("state", {})
        if (admit := state.get(ADMIT)) is not None:
            admit()
        state[CALLER] = caller
        if _length(headers) > MOST_BYTES:
            self._turn_away(caller, scope, TOO_LARGE)
            await _answer(send, 413, [], json.dumps({"detail": TOO_LARGE}).encode())
        elif scope["method"] in READ:
            await self._app(scope, _limited(receive), self._while_known(caller, _guarded(send)))
        else:
            await self._change(caller, scope, _limited(receive), _guarded(send))

    def _while_known(self, caller: Caller, send: Send) -> Send:
        """A stream ends when the token is removed that has asked for it."""
        over = False

        async def watched(message: Message) -> None:
            nonlocal over
            if over:
                return
            if message["type"] == "http.response.body" and not self._book.knows(caller):
                over, message = True, {"type": "http.response.body", "body": b""}
            await send(message)

        return watched

    async def _change(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        """The answer is held back until the log has what was done."""
        asked, answer = bytearray(), list[Message]()

        async def heard() -> Message:
            message = await receive()
            asked.extend(message.get("body", b"")[: MOST_ASKED + 1 - len(asked)])
            return message

        async def hold(message: Message) -> None:
            answer.append(message)

        try:
            await self._app(scope, heard, hold)
        finally:
            if (entry := entry_of(caller, scope, bytes(asked), answer, self._log.clock())) is not None:
                self._log.note(entry)
        for message in answer:
            await send(message)


async def _refuse(scope: Scope, send: Send, headers: dict[bytes, bytes]) -> None:
    """Nothing but the status; a person who opens the page, or a link that was used before, reads what to do."""
    opens_page = scope["method"] == "GET" and scope["path"] in ("/", "/login")
    if not opens_page or b"text/html" not in headers.get(b"accept", b""):
        await _answer(send, 401, [(b"www-authenticate", b"Bearer")])
        return
    port = (scope.get("server") or ("", 0))[1]
    kept = [(b"content-type", b"text/html; charset=utf-8"), *HEADERS]
    await _answer(send, 401, kept, SIGN_IN.replace("PORT", str(port)).encode())


def _refusal(session: Session, scope: Scope, headers: dict[bytes, bytes]) -> str | None:
    """Why a request with the cookie is not this server's own page's."""
    if not session.is_at_home(headers.get(b"host", b""), headers.get(b"origin"), scope["scheme"]):
        return "this request comes from another page than this server's own"
    reads_page = scope["method"] in ("GET", "HEAD") and (scope["path"] in PAGE or scope["path"].startswith(FILES))
    if not reads_page and not session.has_key(headers.get(KEY_HEADER, b"")):
        return "not signed in: open the address that `vf dashboard` prints"
    return None


def _name(scope: Scope) -> str:
    port = (scope.get("server") or ("", 0))[1]
    return f"{'__Host-' if scope['scheme'] == 'https' else ''}{COOKIE}_{port}"


def _cookie(scope: Scope, session: Session) -> bytes:
    secure = "; Secure" if scope["scheme"] == "https" else ""
    kept = f"HttpOnly; SameSite=Strict; Path=/; Max-Age={SESSION_SECONDS:.0f}{secure}"
    return f"{_name(scope)}={session.cookie}; {kept}".encode()


def _cookies(scope: Scope) -> Iterator[bytes]:
    """The values of this server's cookie; those of other servers are ignored."""
    wanted = _name(scope).encode()
    for header, value in scope["headers"]:
        for part in value.split(b";") if header == b"cookie" else ():
            name, _, cookie = part.strip().partition(b"=")
            if name == wanted:
                yield cookie


def _length(headers: dict[bytes, bytes]) -> int:
    length = headers.get(b"content-length", b"0")
    return int(length) if length.isdigit() else MOST_BYTES + 1


def _limited(receive: Receive) -> Receive:
    """A body that comes in pieces has no length that could be looked at."""
    received = 0

    async def limited() -> Any:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        return message if received <= MOST_BYTES else {"type": "http.disconnect"}

    return limited


def _guarded(send: Send) -> Send:
    async def guarded(message: Any) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *HEADERS]
        await send(message)

    return guarded


async def _answer(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes = b"") -> None:
    more = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *more]})
    await send({"type": "http.response.body", "body": body})
