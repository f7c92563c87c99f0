"""Which files of its own a script is made of: found by reading it, without running any of it.

Its own are those that lie outside of the standard library and of site-packages, wherever that is: beside the script, on
``PYTHONPATH``, in an editable install. ``virtualflow`` itself is never among them.
"""

from __future__ import annotations

import ast
import hashlib
import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.machinery import EXTENSION_SUFFIXES, BuiltinImporter, FrozenImporter, PathFinder
from pathlib import Path
from typing import Any

MAIN = "__main__"
MOST_REACHED = 4000  # modules that are followed
_PACKAGES = ("site-packages", "dist-packages")
_SUFFIXES = (*EXTENSION_SUFFIXES, ".py")
_LONGEST_NAME = 255


@dataclass(frozen=True, slots=True)
class Reach:
    """What a script's ``import`` statements lead to, as far as it is the user's own."""

    modules: Mapping[str, str]  # source files by module, the script's own as __main__
    trees: tuple[str, ...]  # top-level modules whole: files, and folders of packages
    named: Mapping[str, str]  # top-level modules that only a finder of an editable install knows
    opaque: tuple[str, ...]  # what is no source: extension modules, archives
    strings: tuple[tuple[str, str], ...]  # constants that may name a file, and the file that they stand in


@dataclass(frozen=True, slots=True)
class _Place:
    file: str | None  # None for a namespace package
    folders: tuple[str, ...] = ()  # where its submodules are


@dataclass(slots=True)
class _Search:
    path: Sequence[str]
    modules: dict[str, str] = field(default_factory=dict)
    trees: dict[str, None] = field(default_factory=dict)
    named: dict[str, str] = field(default_factory=dict)
    opaque: dict[str, None] = field(default_factory=dict)
    strings: dict[tuple[str, str], None] = field(default_factory=dict)
    places: dict[str, _Place | None] = field(default_factory=dict)
    names: dict[str, frozenset[str]] = field(default_factory=dict)
    waiting: list[tuple[str, str]] = field(default_factory=list)  # files to be read, and their packages


def search_path(folder: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Where Python looks for modules: first in *folder*, the script's or for ``python -m`` the current one."""
    given = environment["PYTHONPATH"].split(os.pathsep) if environment.get("PYTHONPATH") else []
    own = [] if sys.flags.safe_path else [folder]
    rest = sys.path if sys.flags.safe_path else sys.path[1:]  # the first is where the launcher itself lies
    entries = [*own, *given, *rest]
    return tuple(dict.fromkeys(os.path.abspath(entry) for entry in entries))


def module_to_run(name: str, path: Sequence[str]) -> tuple[str, str] | None:
    """The full name and the file of what ``python -m name`` runs, if there is one: of a package, its ``__main__``."""
    search, folders, place = _Search(path), path, None
    for part in name.split("."):
        place = _locate(search, part, folders) or (_ask_finders(part) if place is None else None)
        if place is None:
            return None
        folders = place.folders
    if folders:
        name, place = f"{name}.{MAIN}", _locate(search, MAIN, folders)
    file = place.file if place is not None else None
    return (name, os.path.abspath(file)) if file is not None and file.endswith(".py") else None


def reach(script: Path, path: Sequence[str], package: str = "") -> Reach:
    """Follow the imports of *script*, which belongs to *package*, with *path* to look for them."""
    search = _Search(path)
    search.opaque |= dict.fromkeys(entry for entry in path if os.path.isfile(entry) and is_own(entry))
    _note(search, MAIN, package, os.path.abspath(script))
    if package:
        _follow(search, package)
    while search.waiting:
        file, package = search.waiting.pop()
        imported, strings = _parsed(file)
        search.strings |= dict.fromkeys((text, file) for text in strings)
        for name in imported:
            if absolute := _absolute(name, package):
                _follow(search, absolute)
    return Reach(search.modules, tuple(search.trees), search.named, tuple(search.opaque), tuple(search.strings))


def is_own(file: str) -> bool:
    """Whether a file is the user's, and not of Python or of an installed package."""
    real = os.path.realpath(file)
    return not any(part in real.split(os.sep) for part in _PACKAGES) and not _is_in(real, _system_folders())


# What is loaded stays what it was, and each worker would look at thousands of files and folders.
was_own = cache(is_own)


def loaded() -> dict[str, str]:
    """The user's own modules that this process has imported, and the files that they came from."""
    modules = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or name.split(".")[0] in ("virtualflow", "__mp_main__"):
            continue
        if name == MAIN or (file.endswith(".py") and was_own(file)):
            modules[name] = os.path.abspath(file)
    return modules


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def digest_of_file(file: str) -> str | None:
    """None for a file that can't be read."""
    try:
        status = os.stat(file)
        return _digest(file, status.st_mtime_ns, status.st_size, status.st_ino)
    except OSError:
        return None


@lru_cache(maxsize=4096)
def _digest(file: str, *_: int) -> str:
    return digest_of(Path(file).read_bytes())


def _follow(search: _Search, name: str) -> None:
    """Find module after module of a dotted name; the last ones may be no modules but what these define."""
    folders: Sequence[str] = search.path
    known = ""
    for part in name.split("."):
        package, known = known, f"{known}.{part}" if known else part
        if known not in search.places:
            search.places[known] = _find(search, known, part, folders)
            if (module_place := search.places[known]) is not None and module_place.file is not None:
                _note(search, known, known if module_place.folders else package, module_place.file)
        place = search.places[known]
        if place is None:
            return
        folders = place.folders


def _find(search: _Search, name: str, tail: str, folders: Sequence[str]) -> _Place | None:
    if "." in name:
        return _locate(search, tail, folders)
    if name in sys.builtin_module_names or name == "virtualflow":
        return None
    place = _locate(search, tail, folders)
    if place is None and (place := _ask_finders(name)) is not None:
        search.named[name] = place.file or place.folders[0]
    if place is None:
        return None
    own = tuple(folder for folder in place.folders if is_own(folder))
    if not (own if place.file is None else is_own(place.file)):
        return None
    search.trees |= dict.fromkeys(own or [place.file or ""])
    return _Place(place.file, own) if place.file is None else place


def _locate(search: _Search, tail: str, folders: Iterable[str]) -> _Place | None:
    """As Python's own finder does it: the first package or module counts, else all folders of that name together."""
    portions = []
    for folder in folders:
        names, base = _names(search, folder), os.path.join(folder, tail)
        is_folder = tail in names and os.path.isdir(base)
        if is_folder:
            inner = _names(search, base)
            for suffix in _SUFFIXES:
                if f"__init__{suffix}" in inner:
                    return _Place(os.path.join(base, f"__init__{suffix}"), (base,))
        for suffix in _SUFFIXES:
            if tail + suffix in names:
                return _Place(base + suffix)
        if is_folder:
            portions.append(base)
    return _Place(None, tuple(portions)) if portions else None


def _names(search: _Search, folder: str) -> frozenset[str]:
    if folder not in search.names:
        try:
            search.names[folder] = frozenset(os.listdir(folder))
        except OSError:
            search.names[folder] = frozenset()
    return search.names[folder]


def _ask_finders(name: str) -> _Place | None:
    """What the finders of editable installs say."""
    for finder in sys.meta_path:
        find: Any = getattr(finder, "find_spec", None)
        if finder in (BuiltinImporter, FrozenImporter, PathFinder) or find is None:
            continue
        try:
            spec = find(name, None)
            folders = tuple(spec.submodule_search_locations or ()) if spec is not None else ()
        except Exception:
            continue
        if spec is not None and (spec.has_location or folders):
            return _Place(spec.origin if spec.has_location else None, folders)
    return None


def _note(search: _Search, module: str, package: str, file: str) -> None:
    if not file.endswith(".py") and module != MAIN:
        search.opaque[file] = None
    elif len(search.modules) < MOST_REACHED:
        search.modules[module] = file
        search.waiting.append((file, package))


def _absolute(name: str, package: str) -> str:
    """``..models.net`` as seen from *package*."""
    level = len(name) - len(name.lstrip("."))
    if not level:
        return name
    base = package.split(".")[: len(package.split(".")) - level + 1]
    return ".".join([*base, name[level:]]).strip(".") if package and base else ""


def _parsed(file: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    try:
        status = os.stat(file)
        return _parse(file, status.st_mtime_ns, status.st_size)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return (), ()  # the worker that imports it reports the error


@lru_cache(maxsize=4096)
def _parse(file: str, *_: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    tree = ast.parse(Path(file).read_bytes(), file)
    imports: dict[str, None] = {}
    strings: dict[str, None] = {}
    for node in ast.walk(tree):
        imports |= dict.fromkeys(_imported(node))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _may_be_a_name(node.value):
            strings[node.value] = None
    return tuple(imports), tuple(strings)


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = "." * node.level + (node.module or "")
        joint = "" if base.endswith(".") else "."
        yield base
        yield from (f"{base}{joint}{alias.name}" for alias in node.names if alias.name != "*")
    elif isinstance(node, ast.Call) and node.args:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        first = node.args[0]
        if called in ("import_module", "__import__") and isinstance(first, ast.Constant):
            yield from [first.value] if isinstance(first.value, str) and len(node.args) == 1 else []


def _may_be_a_name(text: str) -> bool:
    return 0 < len(text) <= _LONGEST_NAME and not any(character in text for character in "\n\0")


def _is_in(file: str, folders: Iterable[str]) -> bool:
    return any(file == folder or file.startswith(folder + os.sep) for folder in folders)


@cache
def _system_folders() -> tuple[str, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = [sysconfig.get_path(name) for name in names]
    folders += [sysconfig.get_path("stdlib", vars={"base": sys.base_prefix, "installed_base": sys.base_prefix})]
    folders += [os.path.dirname(os.__file__), *site.getsitepackages(), site.getusersitepackages()]
    folders += [str(Path(__file__).parent.parent)]  # this package
    return tuple({os.path.realpath(folder) for folder in folders if folder})
