"""What a job runs: copies of the script, of all that it imports of the user's own, and of files that are to go with it.

They lie in a folder, the *snapshot*, with a manifest that says what each is a copy of. Workers run from that folder
alone (``overlay``), so that what is edited after the job began, or is another version elsewhere, does not count.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from virtualflow.errors import LaunchError
from virtualflow.program import source
from virtualflow.program.source import digest_of_file
from virtualflow.system import private_files
from virtualflow.system.home import home

MANIFEST = ".program.json"
ELSEWHERE = "_elsewhere"  # the folder of copies from outside of the script's own
LARGEST_NOTED = 2**20
MOST_NOTED = 128
_BINARY = "base64:"  # before the name of a file that is no text
_SYSTEM = ("/proc/", "/dev/", "/sys/", "/etc/", "/usr/", "/lib/", "/lib64/", "/bin/", "/run/")
_TOOLS = ("torchinductor", "/.git/")  # what they read there is not the script's
NO_CONFIG = (".py", ".pyc", ".so", ".pt", ".pth", ".ckpt", ".log")  # code, and what trainings write

_log = logging.getLogger("virtualflow")


@dataclass(frozen=True, slots=True)
class Program:
    """The manifest. All paths but the copies' are absolute, as they are where the job was created."""

    script: str
    directory: str = ""  # where it was started: relative names count from there
    copies: Mapping[str, str] = field(default_factory=dict)  # by original: the name in the snapshot
    path: tuple[str, ...] = ()  # where the user's own modules are looked for, besides the script's folder
    named: Mapping[str, str] = field(default_factory=dict)  # modules that only an editable install's finder knows
    modules: Mapping[str, str] = field(default_factory=dict)  # originals by module, as far as reading finds them
    noted: Mapping[str, str] = field(default_factory=dict)  # digests of files that it reads where they are
    read: tuple[str, ...] = ()  # those of them that it has really read
    written: tuple[str, ...] = ()  # those that it writes itself: they may change
    revision: str | None = None
    left_out: tuple[str, ...] = ()  # shown when the job is started
    module: str = ""  # the script's full name as a module, if it is run as ``python -m`` runs one

    @property
    def folder(self) -> str:
        """Where its modules are looked for first."""
        return self.directory if self.module else os.path.dirname(os.path.realpath(self.script))

    @property
    def package(self) -> str:
        """The one that relative imports of the script count from."""
        return self.module.rpartition(".")[0]

    @property
    def main(self) -> str:
        """The script's copy."""
        return self.copies.get(self.script, os.path.basename(self.script))

    def changed(self) -> list[str]:
        """Files that the job has read, and that are others by now. What is not there will be missed by the script."""
        now = {file: digest_of_file(file) for file in self.read}
        return [file for file, digest in now.items() if digest is not None and digest != self.noted[file]]

    def shown(self, file: str) -> str:
        """A file's name as short as it can be."""
        for folder in (self.directory, self.folder):
            if folder and file.startswith(folder + os.sep):
                return file[len(folder) + 1 :]
        return file

    def write(self, snapshot: Path) -> None:
        partial = snapshot / f"{MANIFEST}.partial"
        partial.touch(0o600)
        partial.write_text(json.dumps(asdict(self), indent=1))
        os.replace(partial, snapshot / MANIFEST)

    @classmethod
    def parse(cls, text: str) -> Program:
        fields: dict[str, Any] = json.loads(text)
        lists = ("path", "read", "written", "left_out")
        return cls(**fields | {name: tuple(fields[name]) for name in lists})

    @classmethod
    def of(cls, snapshot: Path, script: str) -> Program:
        """The one in *snapshot*. Without a manifest, what lies there stands for what lies beside the script."""
        try:
            return cls.parse((snapshot / MANIFEST).read_text())
        except FileNotFoundError:
            script = os.path.abspath(script)
            beside = {os.path.join(os.path.dirname(script), name): name for name in _names_in(snapshot)}
            return cls(script, copies=beside)


def changed_text(names: Iterable[str], since: str = "the job read it") -> str:
    """What is wrong with files that have changed, and what to do."""
    files = ", ".join(names)
    return (
        f"{files} changed since {since}: with that, a worker would train another model than the others have. "
        "Put it back as it was, or start a new job; `--include FILE` gives a job a copy of its own."
    )


def may_be_config(file: str) -> bool:
    """Whether a file that a script reads is small, and its user's: not the system's, not a package's, not ours."""
    if file.startswith(_SYSTEM) or file.endswith(NO_CONFIG) or not source.is_own(file):
        return False
    try:
        small = os.path.isfile(file) and os.path.getsize(file) <= LARGEST_NOTED
    except OSError:
        return False
    hidden = (f"{home().resolve()}{os.sep}", os.path.expanduser("~/."))  # caches, and settings of programs
    return small and not any(name in file for name in _TOOLS) and not os.path.realpath(file).startswith(hidden)


def read_modules(snapshot: Path) -> dict[str, str]:
    """The snapshot as text, to be sent to a worker on another machine."""
    return dict(as_text((name, (snapshot / name).read_bytes()) for name in (*_names_in(snapshot), MANIFEST)
                         if (snapshot / name).is_file()))  # fmt: skip


def write_modules(snapshot: Path, modules: Mapping[str, str]) -> None:
    """What ``read_modules`` has read, in another folder, and nowhere else."""
    write_files(snapshot, {
        name.removeprefix(_BINARY): base64.b64decode(text) if name.startswith(_BINARY) else text.encode()
        for name, text in modules.items()
    })  # fmt: skip


def write_files(snapshot: Path, contents: Mapping[str, bytes]) -> None:
    """Write *contents*, by name, in the snapshot. Raises LaunchError if a name leads out of it."""
    private_files.make_folder(snapshot)
    root = os.path.realpath(snapshot)
    folders: dict[str, str] = {}  # there may be thousands of files, and each is copied before a job starts
    for name, data in contents.items():
        folder, base = os.path.split(os.path.join(root, name))
        if folder not in folders:
            folders[folder] = os.path.realpath(folder)
            if not f"{folders[folder]}/".startswith(f"{root}/"):
                raise _lies_outside(name)
            private_files.make_folder(Path(folder))
        if base in ("", ".", "..") or os.path.islink(target := os.path.join(folders[folder], base)):
            raise _lies_outside(name)
        with open(target, "wb", opener=private_files.opener) as file:
            file.write(data)


def _lies_outside(name: str) -> LaunchError:
    return LaunchError(f"the job sent a module with the name {name!r}, which lies outside of its folder")


def as_text(contents: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, str]]:
    for name, data in contents:
        try:
            yield name, data.decode()
        except UnicodeDecodeError:
            yield _BINARY + name, base64.b64encode(data).decode()


def _names_in(snapshot: Path) -> list[str]:
    files = (file for file in sorted(snapshot.rglob("*")) if file.is_file() and "__pycache__" not in file.parts)
    return [str(file.relative_to(snapshot)) for file in files if not file.name.startswith(MANIFEST)]


class RunningProgram:
    """The manifest of a job that runs: takes in what its workers report of files that reading the code did not find."""

    def __init__(self, snapshot: Path, script: str) -> None:
        self._snapshot = snapshot
        self.program = Program.of(snapshot, script)

    def module_loaded(self, file: str, name: str, source: bytes) -> str | None:
        """A worker has imported a module; return what does not fit to what others have imported."""
        program = self.program
        try:
            if file in program.copies:
                if (self._snapshot / program.copies[file]).read_bytes() == source:
                    return None
                return (
                    f"{program.shown(file)} was edited while workers imported it, so that they run two versions of it. "
                )
            copy = os.path.join(ELSEWHERE, file.lstrip(os.sep))
            write_files(self._snapshot, {copy: source})
            self._change(copies={**program.copies, file: copy}, modules={**program.modules, name: file})
        except OSError as error:  # a full disk, no descriptor, or no name for a file: joiners read the original
            _log.warning("%s can't be kept with the job, or compared: %s", program.shown(file), error.strerror)
        return None

    def file_read(self, file: str, digest: str) -> str | None:
        """A worker has read a file; return what does not fit to what others have read."""
        program = self.program
        if file in program.written:
            return None
        if program.noted.get(file, digest) != digest:
            return (
                f"{program.shown(file)} was changed while workers read it, so that they have read two versions of it. "
            )
        if file not in program.read:
            self._change(noted={**program.noted, file: digest}, read=(*program.read, file))
        return None

    def file_written(self, file: str) -> None:
        """A worker has written a file: what the job reads there is its own."""
        program, written = self.program, (*self.program.written, file)
        if file in program.noted:
            noted = {name: digest for name, digest in program.noted.items() if name != file}
            self._change(noted=noted, read=tuple(name for name in program.read if name != file), written=written)
        elif file not in program.written:
            self.program = replace(program, written=written)  # so that a later read of it is recognised

    def _change(self, **fields: Any) -> None:
        self.program = replace(self.program, **fields)
        with contextlib.suppress(OSError):  # a full disk ends no job
            self.program.write(self._snapshot)
