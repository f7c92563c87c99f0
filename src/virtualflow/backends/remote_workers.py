"""Workers on another machine: forks them there, and passes on what they write and the messages to them."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec.json import Decoder

from virtualflow.backends.local import LocalBackend
from virtualflow.backends.remote_files import Outbox
from virtualflow.job.json_lines import decoded
from virtualflow.job.spec import WorkerSpec
from virtualflow.program.manifest import write_modules

READ_SECONDS = 1.0  # then an empty answer is a sign of life
LOOK_SECONDS = 0.05  # between two looks at what workers have written
PIECE = 1 << 16
RESUMED = "resumed.pt"
_SPECS = Decoder(WorkerSpec)
Chunk = tuple[int, str, bytes]  # a worker's number, a stream or a file, and what was written there


@dataclass(frozen=True, slots=True)
class JobFiles:
    """What a worker needs of a job's folder that its machine does not see."""

    modules: dict[str, str]
    checkpoint: bytes | None  # that the job goes on from


class _WorkerIO:
    """One worker's output and line. *folder* stands for the job's if this machine does not see that."""

    def __init__(self, folder: Path | None) -> None:
        self.pid = 0
        self.code: int | None = None
        self.folder = folder
        self.outbox = Outbox(folder) if folder is not None else None
        self.control, self.theirs = socket.socketpair()
        self.readers, self.writers = zip(os.pipe(), os.pipe(), strict=True)

    @property
    def streams(self) -> dict[str, tuple[int, Callable[[], bytes]]]:
        stdout, stderr = self.readers
        return {
            "control": (self.control.fileno(), partial(self.control.recv, PIECE)),
            "stdout": (stdout, partial(os.read, stdout, PIECE)),
            "stderr": (stderr, partial(os.read, stderr, PIECE)),
        }

    def close_theirs(self) -> None:
        self.theirs.close()
        for writer in self.writers:
            os.close(writer)

    def close(self) -> None:
        self.control.close()
        for reader in self.readers:
            os.close(reader)
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


class MachineAgent:
    """Owns a fork server, so that a worker starts in milliseconds. Each worker has the number that its starter gave it.

    ``read`` and ``write`` may be called from a thread each, beside the one that calls the rest.
    """

    def __init__(
        self, threads_per_device: int, address: str, hash_seed: str = "0", preload: Sequence[str] = ()
    ) -> None:
        self._backend = LocalBackend(
            threads_per_device=threads_per_device, hash_seed=hash_seed, outlives_us=True, preload=preload
        )
        self._address = address
        self._forking = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._workers: dict[int, _WorkerIO] = {}

    def prepare(self, folder: str) -> str:
        """Be ready to start workers, in *folder* if this machine has it; return the machine's address."""
        with contextlib.suppress(OSError):
            os.chdir(folder)
        self._backend.__enter__()
        self._selector.register(self._backend.fileno(), selectors.EVENT_READ)
        return self._address

    def sees(self, folder: str) -> bool:
        """Whether this machine has the job's folder, too."""
        return Path(folder, "job.json").exists()

    def start(
        self, number: int, spec_text: bytes, environment: Mapping[str, str], files: JobFiles | None = None
    ) -> int:
        """Start a worker; return its process's id. With *files*, what it writes to the job's folder is read, too."""
        spec = decoded(_SPECS, spec_text).elsewhere(self._address, sees_one=bool(environment))
        folder = Path(tempfile.mkdtemp(prefix="vf-agent-")) if files is not None else None
        if folder is not None and files is not None:
            spec = spec.in_folder(str(folder), resume_from=str(folder / RESUMED))
            write_modules(folder / "snapshot", files.modules)
            (folder / RESUMED).write_bytes(files.checkpoint or b"")
        worker = _WorkerIO(folder)
        try:
            with self._forking:
                outputs = worker.writers[0], worker.writers[1]
                worker.pid = self._backend.start(spec, *outputs, worker.theirs.fileno(), environment)
                self._workers[number] = worker
        finally:
            worker.close_theirs()
        for name, (descriptor, read) in worker.streams.items():
            self._selector.register(descriptor, selectors.EVENT_READ, (number, name, read))
        return worker.pid

    def read(self) -> tuple[list[Chunk], list[tuple[int, int]]]:
        """What workers have written since the last call; and who has ended, with which exit code."""
        apart = any(worker.outbox is not None for worker in self._workers.values())
        chunks = self._read(LOOK_SECONDS if apart else READ_SECONDS)
        with self._forking:
            codes = {end.process: end.code for end in self._backend.exits(0.0)}
            for worker in self._workers.values():
                worker.code = codes.get(worker.pid, worker.code)
            gone = {number: worker for number, worker in self._workers.items() if worker.code is not None}
        more = bool(gone)  # the last output of those who have ended
        while more:
            last = self._read(0.0)
            chunks += last
            more = any(number in gone for number, _, _ in last)
        written = {
            number: worker.outbox.new_pieces()
            for number, worker in list(self._workers.items())
            if worker.outbox is not None
        }
        chunks += [(number, *piece) for number, pieces in written.items() for piece in pieces]
        ended = [(number, worker.code) for number, worker in gone.items() if not written.get(number)]
        for number, _ in ended:
            self._forget(number)
        return chunks, [(number, code) for number, code in ended if code is not None]

    def write(self, number: int, data: bytes) -> None:
        """Pass on messages of the coordinator to a worker."""
        if (worker := self._workers.get(number)) is not None:
            with contextlib.suppress(OSError):
                worker.control.sendall(data)

    def kill(self, number: int, signal_number: int) -> None:
        """Send a signal to a worker and all that it has started."""
        if (worker := self._workers.get(number)) is not None:
            self._backend.kill(worker.pid, signal_number)

    def _read(self, timeout_seconds: float) -> list[Chunk]:
        chunks = []
        for key, _ in self._selector.select(timeout_seconds):
            if key.data is None:
                continue  # a worker has started or ended
            number, name, read = key.data
            try:
                data = read()
            except OSError:
                data = b""
            if data:
                chunks.append((number, name, data))
            else:
                self._selector.unregister(key.fileobj)
        return chunks

    def _forget(self, number: int) -> None:
        worker = self._workers.pop(number)
        for descriptor, _ in worker.streams.values():
            if descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)
        worker.close()
