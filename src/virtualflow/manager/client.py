"""How ``vf`` verbs reach the manager: JSON over HTTP, with the token."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from virtualflow.core.job_names import job_called
from virtualflow.errors import ManagerError, UnknownJobError, VirtualFlowError
from virtualflow.job import tokens
from virtualflow.system import tls
from virtualflow.system.home import home

ANSWER_SECONDS = 30.0
RECORDS = "jobs.sqlite"
NOBODY = "no manager runs here. `vf cluster up` starts one."
NO_ADDRESS = "{!r} is not the address of a manager: expected http://HOST:PORT or https://HOST:PORT"


def folder() -> Path:
    """Where a manager keeps its records, its token and its address."""
    return home() / "cluster"


@contextmanager
def only_manager() -> Iterator[None]:
    """Hold the lock of this ``$VF_HOME``'s manager."""
    folder().mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder() / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ManagerError(
                f"a manager runs already, with its records in {folder()}: `vf cluster down` ends it"
            ) from None
        yield


@dataclass(frozen=True, slots=True)
class Client:
    """A manager, as its users see it."""

    address: str  # http://HOST:PORT, or https
    token: str
    fingerprint: str = ""  # of the manager's certificate

    @classmethod
    def find(cls) -> Client:
        """The manager of this ``$VF_HOME``; or the one at ``$VF_CLUSTER``, with the token in ``$VF_TOKEN_FILE``."""
        return cls.in_folder(folder(), os.environ.get("VF_CLUSTER"), os.environ.get("VF_TOKEN_FILE"))

    @classmethod
    def in_folder(cls, folder: Path, address: str | None = None, token_file: str | None = None) -> Client:
        """The manager that keeps its records in *folder*; or the one at *address*, with the token in *token_file*."""
        if address is None:
            try:
                address = (folder / "address").read_text().strip()
            except (OSError, UnicodeDecodeError):
                raise ManagerError(NOBODY) from None
        file = Path(token_file or folder / "token")
        if not re.match(r"https?://[^/]", address):
            raise ManagerError(NO_ADDRESS.format(address))
        if not file.exists():
            raise ManagerError(
                f"there is no token file {file} for the manager at {address}. Copy $VF_HOME/cluster/token from its "
                "machine, and set VF_TOKEN_FILE to the copy."
            )
        token = tokens.read_token(file)
        return cls(address, token.secret.decode(), token.fingerprint)

    @classmethod
    def answering(cls) -> Client | None:
        """The manager, if one answers."""
        try:
            client = cls.find()
            client.get("/api/devices")
        except VirtualFlowError:
            return None
        return client

    @classmethod
    def remote(cls) -> Client | None:
        """The manager at ``$VF_CLUSTER``, if that is set: jobs are then looked for there, and not on this machine."""
        return cls.find() if os.environ.get("VF_CLUSTER") else None

    def job_id(self, job: str) -> str:
        """The id of the job with this id, beginning of an id, or name."""
        names = {view["id"]: view["name"] for view in self.get("/api/jobs")}
        job_id = job_called(job, names)
        if job_id is None and not re.fullmatch(r"[\w-]{1,64}", job):
            raise UnknownJobError(f"the manager has no job {job!r}. The newest ones: {', '.join(list(names)[-5:])}.")
        return job_id or job  # perhaps one that ended long ago

    def get(self, path: str) -> Any:
        return self._ask("GET", path, None)

    def post(self, path: str, **body: Any) -> Any:
        return self._ask("POST", path, body or None)

    def _connection(self, scheme: str, host: str, port: int | None) -> http.client.HTTPConnection:
        if scheme == "https":
            return _Pinned(host, port, self.fingerprint)
        if not tls.is_loopback(host):
            raise ManagerError(
                f"{self.address} is on another machine, and would be sent the token as it is. Managers that others can "
                "reach are encrypted: use https://"
            )
        return http.client.HTTPConnection(host, port, timeout=ANSWER_SECONDS)

    def _ask(self, verb: str, path: str, body: Any) -> Any:
        try:
            where = urlsplit(self.address)
            connection = self._connection(where.scheme, where.hostname or "", where.port)
        except (ValueError, http.client.HTTPException) as error:
            raise ManagerError(NO_ADDRESS.format(self.address)) from error
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        try:
            connection.request(
                verb, quote(path, safe="/?=&:@+,"), json.dumps(body) if body is not None else None, headers
            )
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
        except ConnectionRefusedError:
            raise ManagerError(f"no manager answers at {self.address}. `vf cluster up` starts one there.") from None
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
                plain = self.address.replace("https:", "http:", 1)
                raise ManagerError(f"the server at {self.address} is not encrypted: use {plain}") from None
            raise ManagerError(
                f"the manager at {self.address} did not answer: {error or type(error).__name__}"
            ) from error
        finally:
            connection.close()
        if answer.status == 401:
            raise ManagerError(f"the manager at {self.address} has another token than this one")
        if answer.status in (404, 405) and _detail(text) in ("Not Found", "Method Not Allowed"):
            raise ManagerError(f"the manager at {self.address} has no {path}; it may be of another version")
        if answer.status >= 400:
            raise ManagerError(_detail(text) or f"the manager refused: {answer.status} {answer.reason}")
        try:
            return json.loads(text)
        except ValueError as error:
            raise ManagerError(f"the server at {self.address} is not a manager: {text[:80]!r}") from error


class _Pinned(http.client.HTTPSConnection):
    """Sends nothing to a server whose certificate is not the one of the token file."""

    def __init__(self, host: str, port: int | None, fingerprint: str) -> None:
        super().__init__(host, port, timeout=ANSWER_SECONDS, context=tls.client_context())
        self._fingerprint = fingerprint

    def connect(self) -> None:
        super().connect()
        tls.check(self.sock, f"{self.host}:{self.port}", self._fingerprint)


def _detail(text: str) -> str:
    try:
        detail = json.loads(text).get("detail", "")
    except (ValueError, AttributeError):
        return text
    if isinstance(detail, list):  # of what was sent, this is wrong
        return "; ".join(
            f"{'.'.join(str(part) for part in problem['loc'][1:])}: {problem['msg']}" for problem in detail
        )
    return str(detail)
