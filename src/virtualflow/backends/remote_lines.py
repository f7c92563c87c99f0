"""The coordinator's lines to a worker on another machine: what it says comes in here, what it is told goes out."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from virtualflow.backends.remote_files import Inbox
from virtualflow.job.spec import Failure
from virtualflow.job.wire import Wire
from virtualflow.job.wire_messages import TO_WORKER, WorkerFailed

Tell = Callable[[bytes], None]


class Relay:
    """Stands for the worker at the ends of the lines that the coordinator has made for it."""

    def __init__(self, job_folder: Path, stdout: int, stderr: int, control: int) -> None:
        self._outputs = {"stdout": os.dup(stdout), "stderr": os.dup(stderr)}
        self._control = socket.socket(fileno=os.dup(control))
        self._inbox = Inbox(job_folder)
        self._writing = threading.Lock()
        self._closed = False
        self._telling = threading.Lock()
        self._tell: Tell | None = None
        self._untold = b""
        threading.Thread(target=self._pass_on, daemon=True).start()

    def connect(self, tell: Tell) -> None:
        """The worker is there: tell it what it has missed, and all that comes from now on."""
        with self._telling:
            self._tell = tell
        self._say(b"")

    def write(self, stream: str, data: bytes) -> None:
        """Pass on what the worker says, or writes to a folder that is not the job's."""
        with self._writing, contextlib.suppress(OSError):  # the coordinator has stopped listening
            if self._closed:
                return
            if stream == "control":
                self._control.sendall(data)
            elif stream in self._outputs:
                with open(self._outputs[stream], "wb", closefd=False) as file:
                    file.write(data)
            else:
                self._inbox.put(stream, data)

    def fail(self, failure: Failure) -> None:
        """Say for the worker why it could not be started."""
        Wire(self._control, TO_WORKER).send(WorkerFailed(failure))

    def close(self) -> None:
        with self._writing:
            self._closed = True
            with contextlib.suppress(OSError):
                self._control.shutdown(socket.SHUT_RDWR)
            for output in self._outputs.values():
                os.close(output)

    def _pass_on(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._control.recv(1 << 16):
                self._say(data)
        self._control.close()

    def _say(self, data: bytes) -> None:
        with self._telling:
            self._untold += data
            if self._tell is not None and self._untold:
                self._tell(self._untold)
                self._untold = b""
