"""A process with torch already loaded, from which workers are forked: ready in milliseconds, not seconds.

It runs no torch operation and has one thread, so that a fork is clean. So are the packages that it loads besides:
those of its arguments, as far as ``preload_imports`` takes them. It reads ``fork_messages`` from a Unix socket,
and ends, with all its workers, when its owner does.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import selectors
import signal
import socket
import sys
import time
import weakref
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from virtualflow.backends.fork_messages import (
    FORK_REQUESTS,
    ForkRequest,
    FromServer,
    ServerReady,
    WorkerEnded,
    WorkerForked,
)
from virtualflow.backends.preload_imports import preload
from virtualflow.core.device_choice import Accelerator
from virtualflow.job import control
from virtualflow.job.folder import JobFolder
from virtualflow.job.json_lines import decoded, encoded
from virtualflow.job.output import lasting_stream
from virtualflow.job.spec import WorkerSpec
from virtualflow.job.successor_search import is_successor
from virtualflow.program import source
from virtualflow.system.processes import adopt_orphans, end_children

_log = logging.getLogger("virtualflow")
MAX_LISTED = 8  # of the processes that a worker has left behind
OUTLIVE_SECONDS = 1800.0  # for a step or an evaluation that one of many workers has to finish alone
LOOK_SECONDS = 0.02  # between two looks for another coordinator

_workers: set[int] = set()
_newest: WorkerSpec | None = None  # of the newest worker


def main() -> None:
    # A Ctrl-C is the coordinator's business; and Slurm sends SIGTERM to every process of a job, this one too.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    adopt_orphans()  # what a worker leaves behind is ended with it
    connection = socket.socket(fileno=int(sys.argv[1]))
    environment = dict(os.environ)
    gc.disable()  # imports leave no garbage, and looking for it takes half a second
    worker = import_module("virtualflow.job.worker")
    import_module("torch._dynamo")  # making an optimizer imports it, which takes a second
    import_module("virtualflow.train.kernel").load()
    _preload(sys.argv[2:], environment)
    _look_at_modules()
    gc.freeze()  # nor need the workers look there, which would copy the pages
    gc.enable()
    seen = _accelerators()
    wake_reader, wake_writer = socket.socketpair()
    wake_reader.setblocking(False)
    wake_writer.setblocking(False)
    signal.set_wakeup_fd(wake_writer.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(connection, selectors.EVENT_READ)
    selector.register(wake_reader, selectors.EVENT_READ)
    _send(connection, ServerReady(os.getpid(), seen))
    while True:
        for key, _ in selector.select():
            if key.fileobj is not connection:
                wake_reader.recv(4096)
                _reap(connection)
            elif not _handle(connection, worker):
                selector.unregister(connection)
                connection.close()
                connection = _outlive()
                selector.register(connection, selectors.EVENT_READ)
                _send(connection, ServerReady(os.getpid(), seen, tuple(_workers)))


def _preload(names: list[str], environment: dict[str, str]) -> None:
    """Load what the job's script imports. If a package turns out not to be for that, start again without it."""
    sys.stdout, sys.stderr = lasting_stream(1), lasting_stream(2)  # a package may keep them for its log
    if (unsuited := preload(names)) is not None:
        _log.warning("%s is imported by each worker, and not before they start: %s", unsuited.package, unsuited.reason)
        left = [name for name in names if name.split(".")[0] != unsuited.package]
        command = [sys.executable, "-m", "virtualflow.backends.forkserver", sys.argv[1], *left]
        os.execve(sys.executable, command, environment)


def _look_at_modules() -> None:
    """Do once what each worker would do at its start and its end for all that is loaded here."""
    source.loaded()  # it remembers which files are the user's
    for folder in sys.path_importer_cache:
        source.was_own(folder)
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False  # what is loaded here outlives the workers


def _accelerators() -> tuple[Accelerator, ...]:
    """The accelerators of this machine, as a child sees them: a process that has looked at CUDA can't be forked."""
    if import_module("torch").accelerator.current_accelerator() is None:
        return ()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, msgspec.json.encode(import_module("virtualflow.train.accelerators").present()))
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answer:
        answered = answer.read()
    os.waitpid(child, 0)
    return msgspec.json.decode(answered, type=tuple[Accelerator, ...]) if answered else ()


def _handle(connection: socket.socket, worker: Any) -> bool:
    """Do what the coordinator asks for; return whether it is there."""
    try:
        message, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    except ConnectionResetError:
        return False
    if not message:
        return False
    request = decoded(FORK_REQUESTS, message)
    child = os.fork()
    if child == 0:
        connection.close()  # otherwise the client would not see that the server ends
        _become_worker(request, descriptors, worker)
    for descriptor in descriptors:
        os.close(descriptor)
    global _newest
    _newest = request.worker
    _workers.add(child)
    _send(connection, WorkerForked(child))
    return True


def _outlive() -> socket.socket:
    """The coordinator is gone: return the connection to the one that takes over.

    Without one, let the workers leave their checkpoint, and end with them.
    """
    if _newest is not None:
        deadline = time.monotonic() + max(OUTLIVE_SECONDS, 2 * _newest.patience_seconds)
        while _workers and time.monotonic() < deadline:
            _reap(None)
            if _newest.may_outlive:
                with contextlib.suppress(OSError):
                    return control.connect(JobFolder(Path(_newest.job_folder)), control.SERVER, socket.SOCK_SEQPACKET)
            time.sleep(LOOK_SECONDS)
    end_children(spared=set(), is_spared=_takes_over)
    os._exit(0)  # nothing is to be unwound, and libraries that are loaded here would say what they think of that


def _takes_over(pid: int) -> bool:
    """Whether a process is the coordinator that a worker has started: it is not left behind by that."""
    return _newest is not None and _newest.may_outlive and is_successor(pid, _newest.job_folder)


def _become_worker(request: ForkRequest, descriptors: list[int], worker: Any) -> NoReturn:
    code = 1
    try:
        os.setsid()  # a group of its own, so that all it starts can be ended with it
        adopt_orphans()  # as long as it lives: then the server knows whose they were
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ.update(request.environment)
        os.dup2(descriptors[0], 1)
        os.dup2(descriptors[1], 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sys.stdout, sys.stderr = lasting_stream(1), lasting_stream(2)
        # Held open here, too: without a coordinator, what is printed waits for the next one.
        writers = descriptors[:2] if request.worker.may_outlive else []
        outputs = [os.open(f"/proc/self/fd/{writer}", os.O_RDONLY | os.O_NONBLOCK) for writer in writers]
        code = worker.run(request.worker, descriptors[2], outputs)
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # Not sys.exit: that would unwind into the server's own loop.
        os._exit(code)


def _reap(connection: socket.socket | None) -> None:
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None:
            return
        # Before the id is given back: whatever the worker started in its group ends with it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(ended.si_pid, signal.SIGKILL)
        _, status = os.waitpid(ended.si_pid, 0)
        if ended.si_pid not in _workers:
            continue  # what a worker has left, and ended with it
        _workers.discard(ended.si_pid)
        left = [child.command for child in end_children(spared=_workers, is_spared=_takes_over)]
        if connection is not None:
            code = os.waitstatus_to_exitcode(status)
            _send(connection, WorkerEnded(ended.si_pid, code, tuple(left[:MAX_LISTED])))


def _send(connection: socket.socket, message: FromServer) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the coordinator is gone, as the next read shows
        connection.sendall(encoded(message))


if __name__ == "__main__":
    main()
