"""Takes the snapshot of a program: everything of the user's own that it imports, bounded, and never cut silently."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from virtualflow.errors import LaunchError
from virtualflow.program import source
from virtualflow.program.manifest import ELSEWHERE, MANIFEST, MOST_NOTED, Program, as_text, may_be_config, write_files
from virtualflow.program.revision import revision_of
from virtualflow.program.source import digest_of_file
from virtualflow.system.home import home

MOST_FILES = 4000
MOST_BYTES = 32 * 2**20
MOST_LOOKED_AT = 20_000  # names below the script's folder
_SKIPPED = {"__pycache__", "node_modules", "venv", "site-packages"}


@dataclass(frozen=True, slots=True)
class Taken:
    """A program with the contents of its copies, not yet in a folder."""

    program: Program
    contents: Mapping[str, bytes]  # by name in the snapshot

    def write(self, snapshot: Path) -> None:
        write_files(snapshot, self.contents)
        self.program.write(snapshot)

    @property
    def modules(self) -> dict[str, str]:
        """All of it as text."""
        return {MANIFEST: json.dumps(asdict(self.program))} | dict(as_text(self.contents.items()))


def take(
    script: Path,
    *,
    include: Sequence[str] = (),
    arguments: Sequence[str] = (),
    directory: str | None = None,
    environment: Mapping[str, str] | None = None,
    waits: bool = False,
    module: str = "",
) -> Taken:
    """A snapshot of the program that *script* is, as it would run in *directory*, with the files that *include* names.

    With its full name as a *module*, it runs as under ``python -m``.
    For a job that waits for its turn, files that its arguments and its code name are noted: what they are now counts.
    """
    if not script.is_file():
        hint = "" if script.suffix == ".py" else ", or -m for a module"
        raise LaunchError(f"there is no script {script}. Give a path relative to this folder, or a full one{hint}.")
    here = os.path.abspath(directory or os.getcwd())
    empty = Program(os.path.abspath(script), here, module=module)
    path = source.search_path(empty.folder, os.environ if environment is None else environment)
    reach = source.reach(script, path, empty.package)
    collected = _CollectedFiles(empty.script, empty.folder)
    collected.need(reach.modules.values(), "what the script imports")
    collected.need(_included(include, here), "--include")
    collected.add(_named_code(reach, here), "files that the code names")
    for tree in reach.trees:
        collected.add(_sources_in(tree), tree)
    collected.add(_sources_in(collected.folder), collected.folder)
    revision = revision_of(collected.folder)
    noted = {file: digest for file in reach.opaque if (digest := digest_of_file(file)) is not None}
    if waits:
        candidates = [*_named_by(arguments, here), *_named_in(reach, here)]
        configs = [file for file in dict.fromkeys(candidates) if file not in collected.copies and may_be_config(file)]
        noted |= {file: digest for file in configs[:MOST_NOTED] if (digest := digest_of_file(file)) is not None}
        collected.left_out += [f"{len(configs) - MOST_NOTED} files that the code names"] if configs[MOST_NOTED:] else []
    program = replace(
        empty,
        copies=collected.copies,
        path=tuple(
            entry for entry in path if entry != collected.folder and source.is_own(entry) and os.path.exists(entry)
        ),
        named=reach.named,
        modules=reach.modules,
        noted=noted,
        read=tuple(file for file in reach.opaque if file in noted),
        revision=str(revision) if revision is not None else None,
        left_out=tuple(collected.left_out),
    )
    return Taken(program, collected.contents)


class _CollectedFiles:
    """Takes copies, within limits of number and size."""

    def __init__(self, script: str, folder: str) -> None:
        self.script = script
        self.folder = folder
        self.copies: dict[str, str] = {}
        self.contents: dict[str, bytes] = {}
        self.left_out: list[str] = []
        self._bytes = 0

    def need(self, files: Iterable[str], what: str) -> None:
        """Without these the job can't be what it is."""
        for file in files:
            if not self._put(file):
                raise LaunchError(
                    f"{what}: {file} no longer fits into the job's snapshot, which holds {MOST_FILES} files "
                    f"and {MOST_BYTES >> 20} MB at most. Install what is large as a package, or read it where it lies."
                )

    def add(self, files: Iterable[str], what: str) -> None:
        """These too, as far as there is room."""
        missed = [file for file in files if not self._put(file)]
        if missed:
            self.left_out.append(f"all files of {what} (missing: {len(missed)}, the first is {missed[0]})")

    def _put(self, file: str) -> bool:
        if file in self.copies:
            return True
        try:
            data = Path(file).read_bytes() if len(self.copies) < MOST_FILES else None
        except OSError as error:
            if file == self.script:
                raise LaunchError(f"the script {file} can't be read: {error.strerror}") from error
            return True  # the worker that imports it reports the error
        if data is None or self._bytes + len(data) > MOST_BYTES:
            return False
        self._bytes += len(data)
        self.copies[file] = self._name(file)
        self.contents[self.copies[file]] = data
        return True

    def _name(self, file: str) -> str:
        if file == self.script:
            return os.path.basename(file)
        if file.startswith(self.folder + os.sep):
            inner = file[len(self.folder) + 1 :]
            return inner if inner != os.path.basename(self.script) else os.path.join(ELSEWHERE, file.lstrip(os.sep))
        return os.path.join(ELSEWHERE, file.lstrip(os.sep))


def _included(patterns: Sequence[str], here: str) -> Iterator[str]:
    for pattern in patterns:
        names = glob.glob(pattern, root_dir=here, recursive=True, include_hidden=True)
        paths = [os.path.abspath(os.path.join(here, name)) for name in names]
        files = sorted(name for name in paths if os.path.isfile(name))
        if not files:
            raise LaunchError(f"--include {pattern}: there is no such file in {here}")
        yield from files


def _named_code(reach: source.Reach, here: str) -> Iterator[str]:
    """Python files that are named in strings: they may be read and executed."""
    return (file for file in _named_in(reach, here) if file.endswith(".py") and source.is_own(file))


def _named_in(reach: source.Reach, here: str) -> Iterator[str]:
    for text, file in reach.strings:
        for folder in (here, os.path.dirname(file)):
            if os.path.isfile(candidate := os.path.abspath(os.path.join(folder, text))):
                yield candidate


def _named_by(arguments: Sequence[str], here: str) -> Iterator[str]:
    for argument in arguments:
        for text in {argument, argument.partition("=")[2]} - {""}:
            if "\0" not in text and os.path.isfile(file := os.path.abspath(os.path.join(here, text))):
                yield file


def _sources_in(place: str) -> Iterator[str]:
    """A module, or all modules in a folder and below."""
    if not os.path.isdir(place):
        yield place
        return
    jobs, looked_at = str(home().resolve()), 0
    for folder, names, files in os.walk(place):
        looked_at += len(names) + len(files)
        kept = [n for n in sorted(names) if not n.startswith(".") and n not in _SKIPPED]
        names[:] = [n for n in kept if os.path.join(folder, n) != jobs] if looked_at < MOST_LOOKED_AT else []
        yield from (os.path.join(folder, name) for name in sorted(files) if name.endswith(".py"))
