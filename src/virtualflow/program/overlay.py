"""In a worker, the snapshot stands for the files that it was copied from, under their own names.

``sys.path``, ``__file__``, tracebacks and ``inspect.getsource`` are what they are under ``python script.py``; only what
is read there comes from the copies. What the snapshot lacks is found where it is, and reported.
"""

from __future__ import annotations

import builtins
import functools
import io
import linecache
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    BuiltinImporter,
    ExtensionFileLoader,
    FileFinder,
    FrozenImporter,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from importlib.util import cache_from_source, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from virtualflow.program import source
from virtualflow.program.manifest import Program


class Reports(Protocol):
    """Takes in which files the script loads, reads and writes that the snapshot lacks."""

    def module_loaded(self, file: str, name: str, source: bytes) -> object: ...
    def file_read(self, file: str, digest: str) -> object: ...
    def file_written(self, file: str) -> object: ...


class Overlay:
    """The user's own files of a job, as its workers see them."""

    def __init__(self, program: Program, snapshot: Path, reports: Reports) -> None:
        self.program = program
        self._reports = reports
        self._copies = {original: os.path.join(snapshot, name) for original, name in program.copies.items()}
        self._folders: dict[str, set[str]] = {}  # names in them that the snapshot has
        for original in self._copies:
            folder, name = os.path.split(original)
            while name and name not in (names := self._folders.setdefault(folder, set())):
                names.add(name)
                folder, name = os.path.split(folder)

    def install(self) -> None:
        """From now on, imports and ``open`` of this process find the snapshot."""
        first = [] if sys.flags.safe_path else [self.program.folder]
        own = [entry for entry in self.program.path if entry not in sys.path]
        sys.path[: 0 if sys.flags.safe_path else 1] = [*first, *own]
        sys.path_hooks.insert(0, self._finder_in)
        for entry in list(sys.path_importer_cache):
            if source.was_own(entry):
                del sys.path_importer_cache[entry]
        sys.meta_path.insert(sys.meta_path.index(PathFinder) + 1, _Installed(self))
        builtins.open = io.open = self._open()
        self._forget_others()

    def copy_of(self, original: str) -> str | None:
        return self._copies.get(original)

    def read(self, original: str) -> bytes:
        return Path(self._copies.get(original, original)).read_bytes()

    def forget(self, original: str) -> None:
        """The script has written the file itself: what it reads there now is its own."""
        self._copies.pop(original, None)

    def names_in(self, folder: str) -> set[str]:
        return self._folders.get(folder, set())

    def adopt(self, name: str, file: str, data: bytes) -> None:
        """Report a module that the snapshot lacks."""
        self._reports.module_loaded(file, name, data)
        show_as(file, data)

    def redirect(self, spec: ModuleSpec | None) -> ModuleSpec | None:
        """The same module from the snapshot, if it is the user's own."""
        if spec is None or type(spec.loader) is not SourceFileLoader or not spec.origin:
            return spec
        file = os.path.abspath(spec.origin)
        if source.is_own(file):
            spec.loader = self.loader(spec.name, file)
        return spec

    def loader(self, name: str, file: str) -> SourceFileLoader:
        copy = self._copies.get(file)
        return _Copied(name, file, copy) if copy is not None else _Foreign(name, file, self)

    def _finder_in(self, folder: str) -> _Finder:
        where = os.path.abspath(folder)
        if where not in self._folders and (not source.is_own(where) or not os.path.isdir(where)):
            raise ImportError(f"{folder} is none of the job's own folders", path=folder)
        return _Finder(self, where)

    def _forget_others(self) -> None:
        """A module of the user's that has the name of one that is loaded already: the script means its own."""
        for top in {name.split(".")[0] for name in self.program.modules} - {source.MAIN}:
            file = getattr(sys.modules.get(top), "__file__", None)
            if file is not None and not source.is_own(file):
                for name in [name for name in sys.modules if name.split(".")[0] == top]:
                    del sys.modules[name]

    def _open(self) -> Callable[..., Any]:
        real = io.open

        @functools.wraps(real)
        def open_(file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
            if isinstance(file, (str, os.PathLike)) and not set(mode) & set("wax+") and "opener" not in options:
                copy = self._copies.get(os.path.abspath(os.fsdecode(file)))
                if copy is not None and len(rest) < 6:
                    # By way of an opener, so that the file's name stays what it is.
                    options["opener"] = lambda _, flags: os.open(copy, flags)
            return real(file, mode, *rest, **options)

        return open_


def show_as(file: str, data: bytes) -> None:
    """Let tracebacks and ``inspect`` show the code that runs, even if *file* has changed since."""
    lines = io.TextIOWrapper(io.BytesIO(data), encoding=_encoding(data), errors="replace").read().splitlines(True)
    linecache.cache[file] = (len(data), None, lines, file)  # no time: never looked up again


def _encoding(data: bytes) -> str:
    import tokenize

    try:
        return tokenize.detect_encoding(io.BytesIO(data).readline)[0]
    except SyntaxError:
        return "utf-8"


class _Copied(SourceFileLoader):
    """Loads a copy under its original's name; the compiled code is kept beside the copy."""

    def __init__(self, name: str, file: str, copy: str) -> None:
        super().__init__(name, file)
        self._copy = copy

    def path_stats(self, path: str) -> Any:
        return super().path_stats(self._place(path))

    def get_data(self, path: str) -> bytes:
        return super().get_data(self._place(path))

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        super().set_data(self._place(path), data, _mode=_mode)

    def exec_module(self, module: ModuleType) -> None:
        show_as(str(self.path), self.get_data(str(self.path)))
        super().exec_module(module)

    def _place(self, path: str) -> str:
        if path == self.path:
            return self._copy
        return cache_from_source(self._copy) if path == cache_from_source(str(self.path)) else path


class _Foreign(SourceFileLoader):
    """Loads a module that the snapshot lacks, and reports its source."""

    def __init__(self, name: str, file: str, overlay: Overlay) -> None:
        super().__init__(name, file)
        self._overlay = overlay

    def get_code(self, fullname: str) -> Any:
        data = self.get_data(str(self.path))
        self._overlay.adopt(fullname, str(self.path), data)
        return self.source_to_code(data, str(self.path))


class _Finder:
    """Finds the modules in one folder: those of the snapshot, then those that it lacks."""

    def __init__(self, overlay: Overlay, folder: str) -> None:
        self._overlay = overlay
        self._folder = folder
        loaders: list[tuple[Any, list[str]]] = [
            (ExtensionFileLoader, EXTENSION_SUFFIXES),
            (SourceFileLoader, [".py"]),
            (SourcelessFileLoader, [".pyc"]),
        ]
        self._disk = FileFinder(folder, *loaders)

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
        tail, overlay = fullname.rpartition(".")[2], self._overlay
        names, base = overlay.names_in(self._folder), os.path.join(self._folder, tail)
        package, module = os.path.join(base, "__init__.py"), f"{base}.py"
        if overlay.copy_of(package) is not None:
            loader = overlay.loader(fullname, package)
            return spec_from_file_location(fullname, package, loader=loader, submodule_search_locations=[base])
        if overlay.copy_of(module) is not None:
            return spec_from_file_location(fullname, module, loader=overlay.loader(fullname, module))
        spec = overlay.redirect(self._disk.find_spec(fullname, target))
        if spec is None and tail in names and overlay.names_in(base):
            spec = ModuleSpec(fullname, None)
            spec.submodule_search_locations = [base]
        return spec

    def invalidate_caches(self) -> None:
        self._disk.invalidate_caches()

    def iter_modules(self, prefix: str = "") -> Iterator[tuple[str, bool]]:
        """For ``pkgutil``."""
        for name in sorted(self._overlay.names_in(self._folder)):
            if name.endswith(".py") and name != "__init__.py":
                yield prefix + name.removesuffix(".py"), False
            elif "__init__.py" in self._overlay.names_in(os.path.join(self._folder, name)):
                yield prefix + name, True


class _Installed:
    """Stands before the finders of editable installs, which know modules that are on no path."""

    def __init__(self, overlay: Overlay) -> None:
        self._overlay = overlay

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        overlay = self._overlay
        if (file := overlay.program.named.get(fullname)) is not None:
            folders = [os.path.dirname(file)] if os.path.basename(file) == "__init__.py" else None
            if not file.endswith(".py"):
                spec = ModuleSpec(fullname, None)
                spec.submodule_search_locations = [file]
                return spec
            loader = overlay.loader(fullname, file)
            return spec_from_file_location(fullname, file, loader=loader, submodule_search_locations=folders)
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find: Any = getattr(finder, "find_spec", None)
            if finder not in (BuiltinImporter, FrozenImporter, PathFinder) and find is not None:
                module_spec: ModuleSpec | None = find(fullname, path, target)
                if module_spec is not None:
                    return overlay.redirect(module_spec)
        return None
