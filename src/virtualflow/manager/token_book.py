"""Who may do what in a cluster: the manager's own token, and others with roles, kept as hashes.

The file is read again whenever it has changed, so what is added or removed counts at the next request. A file that
cannot be trusted lets nobody in.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from virtualflow.errors import ManagerError
from virtualflow.manager.submission import check_owner
from virtualflow.system.private_files import regular_opener

TOKENS = "tokens.json"
FORMAT = "virtualflow tokens"
OWN = "manager"  # the name of the manager's own token, which is an administrator's
MOST = 1000
_NAME = re.compile(r"[\w][\w.@+-]{0,63}")
_State = tuple[int, int, int, int]  # of the file, as far as its contents may depend on it


class Role(StrEnum):
    """What a token lets its holder do: each role may do what the ones before it may, too."""

    LOOK = "look"
    SUBMIT = "submit"
    ADMINISTER = "administer"

    def includes(self, other: Role) -> bool:
        roles = list(Role)
        return roles.index(self) >= roles.index(other)


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose token a request shows. *owner*: the user whose jobs a submitter hands in, and may change."""

    name: str
    role: Role
    owner: str
    sha256: str  # of the token

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ManagerError(
                f"{self.name!r} can't be the name of a token: up to 64 letters, digits and . _ - @ + are allowed"
            )
        check_owner(self.owner)
        if bool(self.owner) != (self.role == Role.SUBMIT):
            raise ManagerError("a token with the role submit has an owner, whose jobs it submits; no other has one")


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    version: int
    tokens: list[Caller]


class TokenBook:
    """The tokens of one manager, or of one job's page, which has no *path*. May be used from any thread."""

    def __init__(self, own: bytes, path: Path | None = None) -> None:
        self.own = Caller(OWN, Role.ADMINISTER, "", _hash(own))
        self._path = path
        self._lock = threading.Lock()
        self._problem = ""
        self._state: _State | None = None
        self._others: dict[str, Caller] = {}  # by hash

    @property
    def problem(self) -> str:
        """Why the tokens of the file let nobody in; empty if they do."""
        self._read()
        return self._problem

    def caller(self, token: bytes) -> Caller | None:
        """Whose *token* this is; None for a stranger's."""
        sha256 = _hash(token)
        return self.own if sha256 == self.own.sha256 else self._read().get(sha256)

    def knows(self, caller: Caller) -> bool:
        """Whether that token is still good, and for the same."""
        return caller == self.own or self._read().get(caller.sha256) == caller

    def others(self) -> list[Caller]:
        """All but the manager's own. Raises ManagerError if the file can't be trusted."""
        others = sorted(self._read().values(), key=lambda caller: caller.name)
        if self._problem:
            raise ManagerError(self._problem)
        return others

    def add(self, name: str, role: Role, owner: str = "") -> str:
        """A new token, which is kept nowhere. Without an *owner*, a submitter's is called as the token."""
        token = secrets.token_hex(32)
        new = Caller(name, role, owner or (name if role == Role.SUBMIT else ""), _hash(token.encode()))
        others = self.others()
        if name == OWN or any(other.name == name for other in others):
            raise ManagerError(f"there is a token {name} already. `vf cluster token remove {name}` removes it.")
        if len(others) >= MOST:
            raise ManagerError(f"there are {MOST} tokens already: remove some that nobody uses")
        self._write([*others, new])
        return token

    def remove(self, name: str) -> None:
        """From now on it lets nobody in; sessions and streams that it has opened end."""
        others = self.others()
        if name == OWN:
            raise ManagerError(f"the token {OWN} is the manager's own. To change it, remove its file and start again.")
        if not any(other.name == name for other in others):
            names = ", ".join(other.name for other in others) or "none"
            raise ManagerError(f"there is no token {name!r}. The present ones: {names}.")
        self._write([other for other in others if other.name != name])

    def _read(self) -> dict[str, Caller]:
        with self._lock:
            if self._path is not None:
                self._read_file(self._path)
            return self._others

    def _read_file(self, path: Path) -> None:
        try:
            if _state_of(os.stat(path)) == self._state:  # needs no descriptor: there may be none left
                return
            self._others, self._state = {}, None
            with open(path, "rb", opener=regular_opener) as file:
                facts = os.fstat(file.fileno())
                self._problem = _distrust(path, facts)
                if not self._problem:
                    self._others = _decoded(path, file.read())
                self._state = _state_of(facts)
        except FileNotFoundError:
            self._others, self._state, self._problem = {}, None, ""
        except OSError as error:
            self._others, self._state = {}, None
            self._problem = f"no token of {path} is good: it can't be read: {error.strerror}"
        except ManagerError as error:
            self._problem = str(error)

    def _write(self, callers: Sequence[Caller]) -> None:
        if self._path is None:
            raise ManagerError("this is the page of one job, which has one token: `vf cluster up` has others")
        contents = msgspec.json.format(msgspec.json.encode(_File(FORMAT, 1, list(callers))), indent=1)
        partial = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(contents + b"\n")
                os.fsync(file.fileno())
            partial.replace(self._path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise ManagerError(f"the tokens were not changed: cannot write {self._path}: {error.strerror}") from error


def _state_of(facts: os.stat_result) -> _State:
    return facts.st_ino, facts.st_mtime_ns, facts.st_size, facts.st_mode


def _hash(token: bytes) -> str:
    """Tokens are random and long, so a plain hash of one can't be guessed."""
    return hashlib.sha256(token).hexdigest()


def _distrust(path: Path, facts: os.stat_result) -> str:
    """Why others might have written the file; empty if only its owner can."""
    if facts.st_uid != os.geteuid():
        return f"no token of {path} is good: the file belongs to another user. Remove it, and add the tokens again."
    if stat.S_IMODE(facts.st_mode) & 0o077:
        return f"no token of {path} is good: others can read or change it. Look through it, and then chmod 600 {path}"
    return ""


def _decoded(path: Path, contents: bytes) -> dict[str, Caller]:
    try:
        file = msgspec.json.decode(contents, type=_File)
        if (file.format, file.version) != (FORMAT, 1):
            raise ManagerError(f"it is {file.format!r}, version {file.version}")
        names = {OWN, *(caller.name for caller in file.tokens)}
        by_hash = {caller.sha256: caller for caller in file.tokens}
        if len(names) != len(file.tokens) + 1 or len(by_hash) != len(file.tokens):
            raise ManagerError("two tokens have one name, or are the same")
    except (ManagerError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ManagerError(
            f"no token of {path} is good: it is damaged ({error}). Put it right, or remove it and add the tokens again."
        ) from error
    return by_hash
