"""The process that owns one job's membership: starts its workers, passes on their output, ends them all."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from virtualflow.errors import LaunchError
from virtualflow.runtime.backend import Backend
from virtualflow.runtime.output import Sink
from virtualflow.runtime.spec import Failure, WorkerSpec, failure_file

GRACE_SECONDS = 2.0  # between asking a worker to end and ending it
CAUSE_SECONDS = 1.5  # how long the cause of a failure may come in after its consequence


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job as ``vf run`` was told it."""

    job_id: str
    folder: Path
    script: str
    arguments: tuple[str, ...]
    devices: tuple[str, ...]
    owners: tuple[int, ...] | None = None
    port: int = 0
    patience_seconds: float = 30.0
    threads_per_device: int = 1
    device_type: str = "auto"
    audit: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended: the exit code, and what went wrong if something did."""

    code: int
    failure: Failure | None = None


class Coordinator:
    """Runs one job on a *backend* until its script has ended everywhere, or anywhere with an error."""

    def __init__(self, job: JobSpec, backend: Backend, sink: Sink, on_tick: Callable[[], None] = lambda: None) -> None:
        self._job = job
        self._backend = backend
        self._sink = sink
        self._on_tick = on_tick
        self._selector = selectors.DefaultSelector()
        self._device_of: dict[int, str] = {}
        self._codes: dict[str, int] = {}

    def run(self) -> Outcome:
        """Run the job. Whatever happens, no worker is left when this returns."""
        with ExitStack() as owned:
            owned.callback(self._selector.close)
            owned.callback(self._stop_all)
            self._start(owned)
            self._selector.register(self._backend.fileno(), selectors.EVENT_READ, None)
            while len(self._codes) < len(self._device_of):
                self._pump(0.1)
                if any(self._codes.values()):
                    return self._failed()
        return Outcome(0)

    def _start(self, owned: ExitStack) -> None:
        self._job.folder.mkdir(parents=True, exist_ok=True)
        listening = owned.enter_context(_listen(self._job.port))
        if len(self._job.devices) > 1:
            store = self._backend.host_store(listening)
            owned.callback(self._backend.kill, store, signal.SIGKILL)
        for device in self._job.devices:
            self._start_worker(device, listening.getsockname()[1], owned)

    def _start_worker(self, device: str, store_port: int, owned: ExitStack) -> None:
        job = self._job
        spec = WorkerSpec(
            job_id=job.job_id,
            job_folder=str(job.folder),
            device=device,
            devices=job.devices,
            script=job.script,
            arguments=job.arguments,
            store_host="127.0.0.1",
            store_port=store_port,
            patience_seconds=job.patience_seconds,
            owners=job.owners,
            threads_per_device=job.threads_per_device,
            device_type=job.device_type,
            audit=job.audit,
        )
        ends = {}
        for stream in ("stdout", "stderr"):
            reader, ends[stream] = os.pipe()
            self._selector.register(reader, selectors.EVENT_READ, (device, stream))
            owned.callback(os.close, reader)
        try:
            self._device_of[self._backend.start(spec, ends["stdout"], ends["stderr"])] = device
        finally:
            for writer in ends.values():
                os.close(writer)

    def _pump(self, timeout_seconds: float) -> None:
        """Pass on what has come: output first, so that a worker's last words precede its end."""
        ready = [key for key, _ in self._selector.select(timeout_seconds)]
        while any(self._forward(key) for key in ready):
            ready = [key for key, _ in self._selector.select(0)]
        for end in self._backend.exits(0.0):
            if end.pid in self._device_of:
                self._codes[self._device_of[end.pid]] = end.code
        self._on_tick()

    def _forward(self, key: selectors.SelectorKey) -> bool:
        """Pass on what a worker has printed; return whether there was something."""
        if key.data is None:
            return False
        data = os.read(key.fd, 1 << 16)
        if data:
            device, stream = key.data
            self._sink.write(device, stream, data)
        else:
            self._selector.unregister(key.fd)
        return bool(data)

    def _failed(self) -> Outcome:
        """Find the cause: one worker's end makes the others fail too, and may be heard of later."""
        deadline = time.monotonic() + CAUSE_SECONDS
        while (cause := self._cause()) is None and time.monotonic() < deadline:
            self._pump(0.05)
        device = cause.device if cause is not None else next(d for d, code in self._codes.items() if code)
        code = self._codes.get(device, 1)
        return Outcome(128 - code if code < 0 else code, cause or self._left_behind(device))

    def _cause(self) -> Failure | None:
        for device, code in self._codes.items():
            if code < 0:
                return Failure(device, "killed", _signal_advice(device, -code), consequence=False)
            failure = self._left_behind(device)
            if code and failure is None:
                return Failure(device, "exit", "", consequence=False)  # sys.exit(code): the script has said why
            if failure is not None and not failure.consequence:
                return failure
        return None

    def _left_behind(self, device: str) -> Failure | None:
        file = self._job.folder / failure_file(device)
        return Failure.from_json(file.read_text()) if file.exists() else None

    def _stop_all(self) -> None:
        """End every worker that still runs, kindly first."""
        for signal_number, seconds in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, 5.0)):
            running = [pid for pid, device in self._device_of.items() if device not in self._codes]
            for pid in running:
                self._backend.kill(pid, signal_number)
            deadline = time.monotonic() + seconds
            while len(self._codes) < len(self._device_of) and time.monotonic() < deadline:
                self._pump(0.05)


def _listen(port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
    except OSError as error:
        listening.close()
        raise LaunchError(
            f"port {port} cannot be used: {error.strerror}. Another program, perhaps another job, listens there. Choose "
            "another --port, or leave it out and a free one is taken."
        ) from error
    listening.listen()
    return listening


def _signal_advice(device: str, number: int) -> str:
    name = signal.Signals(number).name
    text = f"the worker of device {device} was killed by {name}."
    if number == signal.SIGKILL:
        text += (
            " If nobody did that by hand, the machine ran out of memory: use more virtual nodes (each is then "
            "smaller) or fewer devices on this machine."
        )
    return text + "\n"
