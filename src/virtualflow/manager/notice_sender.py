"""How a notice is sent: by a POST to a web address, or to a command, which is given a limited time."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from virtualflow.errors import ManagerError

ANSWER_SECONDS = 10.0
COMMAND_SECONDS = 60.0
POLL_SECONDS = 0.05
_READ = 4096  # bytes from the end of what a command has printed
_WEB = ("http://", "https://")


def check(where: str) -> None:
    """Raises ManagerError for what is neither a web address nor a command."""
    scheme, is_address, _ = where.partition("://")
    if where.startswith(("http:", "https:")):
        try:
            address = urlsplit(where)
            is_whole = bool(address.hostname) and (address.port is None or address.port > 0)
        except ValueError:
            is_whole = False
        if not is_whole:
            raise ManagerError(f"{where!r} is not a web address that a notice can be sent to")
    elif is_address and scheme.isalnum():
        raise ManagerError(f"{where!r}: a notice goes to an http:// or https:// address, or to a command")
    if "\0" in where:
        raise ManagerError("a zero byte can be in no command")


def send(where: str, notice: Mapping[str, Any], directory: str, over: threading.Event) -> None:
    """Raises OSError or ManagerError if it did not arrive. Once all is *over*, a command is ended."""
    body = json.dumps(notice).encode()
    if where.startswith(_WEB):
        _post(where, body)
        return
    names = {f"VF_JOB_{name.upper()}": str(notice[name]) for name in ("id", "name", "owner", "state", "text")}
    # Files, not pipes: who waits for a pipe's end waits for everything that the command has left in the background.
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as printed:
        given.write(body)
        given.seek(0)
        process = subprocess.Popen(
            ["sh", "-c", where],
            stdin=given,
            stdout=subprocess.DEVNULL,
            stderr=printed,
            env=os.environ | names,
            cwd=directory if Path(directory).is_dir() else "/",
            start_new_session=True,
        )
        _wait(process, over)
        if process.returncode:
            raise ManagerError(f"its command ended with code {process.returncode}: {_last_line(printed)}")


def _wait(process: subprocess.Popen[bytes], over: threading.Event) -> None:
    deadline = time.monotonic() + COMMAND_SECONDS
    while process.poll() is None:
        if over.wait(POLL_SECONDS) or time.monotonic() > deadline:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # all that the command has started, too
            process.wait()
            raise ManagerError(f"its command did not end within {COMMAND_SECONDS:.0f} s")


def _last_line(printed: IO[bytes]) -> str:
    size = printed.seek(0, os.SEEK_END)
    printed.seek(max(0, size - _READ))
    return "".join(printed.read().decode(errors="replace").strip().splitlines()[-1:])


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
