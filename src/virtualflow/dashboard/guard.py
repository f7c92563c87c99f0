"""Who may talk to the server: whoever shows the token, or the cookie that a one-time link has set.

Browsers can't send a header with an event stream, hence the cookie. Nobody else is told anything, not even what there
is to ask for.
"""

from __future__ import annotations

import hmac
import secrets
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Receive, Scope, Send

COOKIE = "vf_session"
MOST_BYTES = 32 << 20  # of a request: a snapshot of a script and its modules
POLICY = "default-src 'self'; img-src 'self' data:; style-src 'self'; frame-ancestors 'none'; base-uri 'none'"
MOST_CODES = 64


class Guard:
    """Lets requests through to *app*."""

    def __init__(self, app: ASGIApp, token: bytes) -> None:
        self._app = app
        self._token = token
        self._session = secrets.token_urlsafe(32)
        self._codes: list[str] = []

    def one_time_code(self) -> str:
        """For a link that works once."""
        code = secrets.token_urlsafe(24)
        self._codes = [*self._codes, code][-MOST_CODES:]
        return code

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if scope["path"] == "/login" and scope["method"] == "GET" and self._takes(scope):
            cookie = f"{COOKIE}={self._session}; HttpOnly; SameSite=Strict; Path=/"
            await _answer(send, 303, [(b"location", b"/"), (b"set-cookie", cookie.encode())])
        elif not self._knows(headers):
            await _answer(send, 401, [(b"www-authenticate", b"Bearer")])
        elif _length(headers) > MOST_BYTES:
            await _answer(send, 413, [], b'{"detail": "the request is larger than 32 MB"}')
        else:
            await self._app(scope, _limited(receive), _guarded(send))

    def _takes(self, scope: Scope) -> bool:
        code = parse_qs(scope["query_string"].decode("latin-1")).get("code", [""])[0]
        if code in self._codes:
            self._codes.remove(code)
            return True
        return False

    def _knows(self, headers: dict[bytes, bytes]) -> bool:
        kind, _, token = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._token):
            return True
        try:
            cookie = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1")).get(COOKIE)
        except Exception:  # whatever a stranger sends
            return False
        return cookie is not None and hmac.compare_digest(cookie.value.encode(), self._session.encode())


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
            message["headers"] = [
                *message["headers"],
                (b"content-security-policy", POLICY.encode()),
                (b"x-content-type-options", b"nosniff"),
                (b"referrer-policy", b"no-referrer"),
                (b"cache-control", b"no-store"),
            ]
        await send(message)

    return guarded


async def _answer(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes = b"") -> None:
    more = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *more]})
    await send({"type": "http.response.body", "body": body})
