"""What a run says of the code that it ran, so that two runs can be told apart by it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from virtualflow.program import source
from virtualflow.program.revision import revision_of

MOST_SOURCES = 500  # that are told one by one
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
    told = digests if len(digests) <= MOST_SOURCES else {}
    return {"code": whole[:SHORT], "sources": told, "commit": revision}


def facts_of_plain_script() -> dict[str, Any]:
    """Those of the script that this process runs without a launcher; in a notebook, of the modules that it uses."""
    modules = source.loaded()
    script = modules.get(source.MAIN)
    if script is not None:
        modules = {**source.reach(Path(script), source.search_path(Path(script), os.environ)).modules, **modules}
    folder = os.path.dirname(script) if script is not None else os.getcwd()
    return code_facts(modules, lambda file: Path(file).read_bytes(), _revision(folder))


@cache
def _revision(folder: str) -> str | None:
    found = revision_of(folder)
    return str(found) if found is not None else None
