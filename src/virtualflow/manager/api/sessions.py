"""Browsers that a one-time link has let in.

A cookie goes to every port of its host, so a server on another port sees it, and a form on any page sends it
along. It is therefore only half of a session: the other half is a key that the page keeps for itself, because storage
belongs to one origin, and sends in a header, which no form can do. Both die with the server, or after some hours.
"""

from __future__ import annotations

import hmac
import math
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from virtualflow.manager.token_book import Caller

SESSION_SECONDS = 12 * 3600.0
CODE_SECONDS = 3600.0  # in which a link must be used
MOST = 64  # of each; the oldest give way
KEY_HEADER = b"x-vf-session"


@dataclass(frozen=True, slots=True)
class Session:
    """One browser."""

    cookie: str
    key: str
    host: str  # under which it reached the server, port included
    ends: float
    caller: Caller  # whose token has made its link

    def has_key(self, key: bytes) -> bool:
        return hmac.compare_digest(key, self.key.encode())

    def is_at_home(self, host: bytes, origin: bytes | None, scheme: str) -> bool:
        """Whether a request was made by this server's own page, under the name by which it was opened."""
        home = self.host.encode("latin-1")
        return host == home and origin in (None, f"{scheme}://".encode() + home)


class Sessions:
    """Those of one server, from its start to its end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._codes: dict[str, tuple[float, Caller]] = {}
        self._sessions: list[Session] = []

    def one_time_code(self, caller: Caller) -> str:
        """For a link that works once, and lets a browser do what *caller* may."""
        code = secrets.token_urlsafe(24)
        self._codes[code] = self._clock() + CODE_SECONDS, caller
        for oldest in list(self._codes)[:-MOST]:
            del self._codes[oldest]
        return code

    def open(self, code: str, host: str) -> Session | None:
        """A session for a browser that brings an unused code."""
        match = next((known for known in self._codes if hmac.compare_digest(known.encode(), code.encode())), None)
        until, caller = self._codes.pop(match) if match is not None else (-math.inf, None)
        if caller is None or until < self._clock():
            return None
        cookie, key = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        session = Session(cookie, key, host, self._clock() + SESSION_SECONDS, caller)
        self._sessions = [*self._sessions, session][-MOST:]
        return session

    def find(self, cookies: Iterable[bytes]) -> Session | None:
        """The session that one of *cookies* belongs to: another port may have set some of the same name."""
        self._sessions = [session for session in self._sessions if session.ends > self._clock()]
        given = list(cookies)[:MOST]
        for session in self._sessions:
            if any(hmac.compare_digest(cookie, session.cookie.encode()) for cookie in given):
                return session
        return None

    def seconds_left(self, session: Session) -> float:
        return max(0.0, session.ends - self._clock())
