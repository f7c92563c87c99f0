"""Runs a job's script in a worker as ``python script.py`` or ``python -m`` would, but from the snapshot."""

from __future__ import annotations

import builtins
import contextlib
import importlib
import io
import os
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from importlib.util import spec_from_file_location
from types import ModuleType
from typing import Any, NoReturn

from virtualflow.errors import ConfigError
from virtualflow.program.manifest import Program
from virtualflow.program.overlay import Overlay, show_as


def run_script(overlay: Overlay, name: str, arguments: Sequence[str]) -> int:
    """Run it under the *name* that it was given; return its exit code, once its threads have ended."""
    program = overlay.program
    with contextlib.suppress(OSError):  # another machine may lack it
        os.chdir(program.directory or ".")
    sys.argv = [name, *arguments]
    sys.stdin = _NoInput()
    overlay.install()
    try:
        if program.package:
            importlib.import_module(program.package)
        source = overlay.read(program.script)
        show_as(program.script, source)
        # Not with our own __future__ imports, which compile would hand on.
        exec(compile(source, program.script, "exec", dont_inherit=True), _main(program).__dict__)
    except SystemExit as end:
        code = _exit_code(end)
    else:
        code = 0
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as an interpreter that ends does
    return code


def _main(program: Program) -> ModuleType:
    main, script = ModuleType("__main__"), program.script
    loader = SourceFileLoader(program.module or "__main__", script)
    names: dict[str, Any] = {"__file__": script, "__builtins__": builtins, "__annotations__": {}, "__cached__": None}
    if program.module and (spec := spec_from_file_location(program.module, script, loader=loader)) is not None:
        names |= {"__spec__": spec, "__package__": program.package, "__cached__": spec.cached}
    main.__dict__.update(names, __loader__=loader)
    sys.modules["__main__"] = main
    return main


def _exit_code(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


class _NoInput(io.TextIOBase):
    """The standard input of a worker: there is one of them, and many workers."""

    def fileno(self) -> int:
        return 0

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> str:
        self._refuse()

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ConfigError(
            "the script reads from its standard input, which a job's workers do not have: each of them would need it, "
            "and again when the job is resumed. Give it a file, or an argument."
        )
