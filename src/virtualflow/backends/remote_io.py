"""The coordinator's side of a worker on another machine: what the worker writes comes in here, its messages go out."""

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

Send = Callable[[bytes], None]


class RemoteIO:
    """Stands for the worker at the ends of the descriptors that the coordinator has made for it."""

    def __init__(self, job_folder: Path, stdout: int, stderr: int, control: int) -> None:
        self._outputs = {"stdout": os.dup(stdout), "stderr": os.dup(stderr)}
        self._control = socket.socket(fileno=os.dup(control))
        self._inbox = Inbox(job_folder)
        self._writing = threading.Lock()
        self._closed = False
        self._sending = threading.Lock()
        self._send: Send | None = None
        self._unsent = b""
        threading.Thread(target=self._forward, daemon=True).start()

    def connect(self, send: Send) -> None:
        """The worker is there: *send* it what has come so far, and all that comes from now on."""
        with self._sending:
            self._send = send
        self._send_on(b"")

    def write(self, stream: str, data: bytes) -> None:
        """Pass on what the worker has written: messages, output, or a file of a folder that is not the job's."""
        with self._writing, contextlib.suppress(OSError):  # the coordinator no longer reads
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
        """Report for the worker why it could not be started."""
        Wire(self._control, TO_WORKER).send(WorkerFailed(failure))

    def close(self) -> None:
        with self._writing:
            self._closed = True
            with contextlib.suppress(OSError):
                self._control.shutdown(socket.SHUT_RDWR)
            for output in self._outputs.values():
                os.close(output)

    def _forward(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._control.recv(1 << 16):
                self._send_on(data)
        self._control.close()

    def _send_on(self, data: bytes) -> None:
        with self._sending:
            self._unsent += data
            if self._send is not None and self._unsent:
                self._send(self._unsent)
                self._unsent = b""
