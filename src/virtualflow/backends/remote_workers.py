"""Workers on another machine: forks them there, and passes on what they say and what they are told."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from msgspec.json import Decoder

from virtualflow.backends.local import LocalBackend
from virtualflow.backends.remote_files import Outbox
from virtualflow.job.json_lines import decoded
from virtualflow.job.spec import WorkerSpec
from virtualflow.program.manifest import write_modules

HEAR_SECONDS = 1.0  # silence is a sign of life, too
LOOK_SECONDS = 0.05  # between two looks at what workers have written
PIECE = 1 << 16
RESUMED = "resumed.pt"
_SPECS = Decoder(WorkerSpec)
Heard = tuple[int, str, bytes]  # a worker's number, a stream or a file, and what has come there
Furniture = tuple[dict[str, str], bytes | None]  # the job's modules, and the checkpoint that it goes on from


class _Seat:
    """One worker's lines. *folder* stands for the job's if this machine does not see that."""

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


class Outpost:
    """Owns a fork server, so that a worker starts in milliseconds. Each worker has the number that its starter gave it.

    ``hear`` and ``tell`` may be called from a thread each, beside the one that calls the rest.
    """

    def __init__(self, threads_per_device: int, address: str, hash_seed: str = "0") -> None:
        self._backend = LocalBackend(threads_per_device=threads_per_device, hash_seed=hash_seed, outlives_us=True)
        self._address = address
        self._forking = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._seats: dict[int, _Seat] = {}

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
        self, number: int, spec_text: bytes, environment: Mapping[str, str], furniture: Furniture | None = None
    ) -> int:
        """Start a worker; return its process's id. With *furniture*, all that it writes to the job's folder is told."""
        spec = decoded(_SPECS, spec_text).elsewhere(self._address, sees_one=bool(environment))
        folder = Path(tempfile.mkdtemp(prefix="vf-outpost-")) if furniture is not None else None
        if folder is not None and furniture is not None:
            spec = spec.in_folder(str(folder), resume_from=str(folder / RESUMED))
            write_modules(folder / "snapshot", furniture[0])
            (folder / RESUMED).write_bytes(furniture[1] or b"")
        seat = _Seat(folder)
        try:
            with self._forking:
                outputs = seat.writers[0], seat.writers[1]
                seat.pid = self._backend.start(spec, *outputs, seat.theirs.fileno(), environment)
                self._seats[number] = seat
        finally:
            seat.close_theirs()
        for name, (descriptor, read) in seat.streams.items():
            self._selector.register(descriptor, selectors.EVENT_READ, (number, name, read))
        return seat.pid

    def hear(self) -> tuple[list[Heard], list[tuple[int, int]]]:
        """What workers have said or written since the last call; and who has ended, with which exit code."""
        apart = any(seat.outbox is not None for seat in self._seats.values())
        heard = self._read(LOOK_SECONDS if apart else HEAR_SECONDS)
        with self._forking:
            codes = {end.process: end.code for end in self._backend.exits(0.0)}
            for seat in self._seats.values():
                seat.code = codes.get(seat.pid, seat.code)
            gone = {number: seat for number, seat in self._seats.items() if seat.code is not None}
        more = bool(gone)  # the last words of those who are gone
        while more:
            last = self._read(0.0)
            heard += last
            more = any(number in gone for number, _, _ in last)
        written = {number: seat.outbox.news() for number, seat in list(self._seats.items()) if seat.outbox is not None}
        heard += [(number, *news) for number, all_news in written.items() for news in all_news]
        ended = [(number, seat.code) for number, seat in gone.items() if not written.get(number)]
        for number, _ in ended:
            self._forget(number)
        return heard, [(number, code) for number, code in ended if code is not None]

    def tell(self, number: int, data: bytes) -> None:
        """Pass on what the coordinator says to a worker."""
        if (seat := self._seats.get(number)) is not None:
            with contextlib.suppress(OSError):
                seat.control.sendall(data)

    def kill(self, number: int, signal_number: int) -> None:
        """Send a signal to a worker and all that it has started."""
        if (seat := self._seats.get(number)) is not None:
            self._backend.kill(seat.pid, signal_number)

    def _read(self, timeout_seconds: float) -> list[Heard]:
        heard = []
        for key, _ in self._selector.select(timeout_seconds):
            if key.data is None:
                continue  # somebody has started or ended
            number, name, read = key.data
            try:
                data = read()
            except OSError:
                data = b""
            if data:
                heard.append((number, name, data))
            else:
                self._selector.unregister(key.fileobj)
        return heard

    def _forget(self, number: int) -> None:
        seat = self._seats.pop(number)
        for descriptor, _ in seat.streams.values():
            if descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)
        seat.close()
