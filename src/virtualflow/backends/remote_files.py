"""A job's files from a machine that does not see the job's folder: what the lead writes there is copied as it comes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from virtualflow.events import StepDone, decode, last_step
from virtualflow.events.lines import LineReader, LineWriter

KEPT_CHECKPOINTS = 2
PIECE = 16 * 2**20
MORE = "+"  # after the name of a file of which more will come


class Outbox:
    """Finds what a worker has written to *folder* since the last call: lines of streams, checkpoints in pieces."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._streams: dict[Path, LineReader] = {}
        self._sent: set[Path] = set()  # checkpoints
        self._under_way: BinaryIO | None = None

    def new_pieces(self) -> list[tuple[str, bytes]]:
        """The names of files, and what comes next in each."""
        pieces = []
        for stream in sorted(self._folder.glob("events*.jsonl")):
            reader = self._streams.setdefault(stream, LineReader(stream))
            if data := b"".join(line + b"\n" for line in reader.read()):
                pieces.append((stream.name, data))
        return pieces + self._piece()

    def _piece(self) -> list[tuple[str, bytes]]:
        """The next piece of a checkpoint (a whole one might take too long); all but the last under a marked name."""
        if self._under_way is None:
            unsent = [file for file in sorted(self._folder.glob("checkpoints/step-*.pt")) if file not in self._sent]
            if not unsent:
                return []
            self._sent.add(unsent[0])
            self._under_way = unsent[0].open("rb")  # held open: its owner may drop it for a newer one
        name, data = Path(self._under_way.name).name, self._under_way.read(PIECE)
        if self._under_way.tell() < os.fstat(self._under_way.fileno()).st_size:
            return [(name + MORE, data)]
        self._under_way.close()
        self._under_way = None
        return [(name, data)]


class Inbox:
    """Puts into the job's *folder* what one worker's outbox sends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._streams: dict[str, LineWriter] = {}
        self._known: dict[str, int] = {}  # by stream: the last step that workers before this one have recorded

    def put(self, name: str, data: bytes) -> None:
        if name.removesuffix(MORE).endswith(".pt"):
            path = self._folder / "checkpoints" / Path(name).name.removesuffix(MORE)
            self._keep(path, data, whole=not name.endswith(MORE))
            return
        if name not in self._streams:
            stream = self._folder / Path(name).name
            self._streams[name] = LineWriter(stream)
            self._known[name] = last_step(stream)
        lines = data.rstrip(b"\n").split(b"\n")
        self._streams[name].append(b"".join(line + b"\n" for line in lines if self._is_new(name, line)))

    def _is_new(self, name: str, line: bytes) -> bool:
        """A new lead sends all its last steps: it can't know which of them were recorded already."""
        timed = decode(line)
        if timed is None:
            return True  # damaged: the reader of the stream skips it, and counts it
        if isinstance(timed[1], StepDone) and timed[1].step <= self._known[name]:
            return False
        self._known[name] = -1
        return True

    def _keep(self, path: Path, data: bytes, *, whole: bool) -> None:
        path.parent.mkdir(exist_ok=True)
        partial = path.with_suffix(f".{id(self)}.partial")
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(partial, flags, 0o666), "ab") as file:
            file.write(data)
            if not whole:
                return
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        for old in sorted(path.parent.glob("step-*.pt"))[:-KEPT_CHECKPOINTS]:
            old.unlink(missing_ok=True)
