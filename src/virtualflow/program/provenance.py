"""What a run says of the code that it ran, so that two runs can be compared by it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from virtualflow.program import source
from virtualflow.program.revision import revision_of

MOST_SOURCES = 500  # that are listed one by one
SHORT = 12  # of a digest


def code_facts(modules: Mapping[str, str], read: Callable[[str], bytes], revision: str | None) -> dict[str, Any]:
    """A digest over the user's own *modules*, those of each, and the commit that they come from."""
    digests = {}
    for name, file in sorted(modules.items()):
        try:
            digests[name] = source.digest_of(read(file))[:SHORT]
        except OSError:
            continue  # it was there when it was imported
    whole = source.digest_of("\n".join(f"{name} {digest}" for name, digest in digests.items()).encode())
    sources = digests if len(digests) <= MOST_SOURCES else {}
    return {"code": whole[:SHORT], "sources": sources, "commit": revision}


def facts_of_plain_script() -> dict[str, Any]:
    """Those of the script that this process runs without a launcher; in a notebook, of the modules that it uses."""
    modules = source.loaded()
    script, folder = modules.get(source.MAIN), os.getcwd()
    if script is not None:
        package: str = getattr(sys.modules[source.MAIN], "__package__", None) or ""  # under ``python -m``
        folder = str(Path(script).resolve().parents[len(package.split(".")) if package else 0])
        path = source.search_path(folder, os.environ)
        modules = {**source.reach(Path(script), path, package).modules, **modules}
    return code_facts(modules, lambda file: Path(file).read_bytes(), _revision(folder))


@cache
def _revision(folder: str) -> str | None:
    revision = revision_of(folder)
    return str(revision) if revision is not None else None
