"""Published traces that are too large to be carried over; ``benchmarks/traces/README.md`` says where they are found."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "PUBLISHED_TRACES"


def find(name: str) -> Path | None:
    """The file of that name in the folder that the variable names. Without it None, and a line that says so."""
    folder = os.environ.get(VARIABLE)
    path = Path(folder, name) if folder else None
    if path is not None and path.exists():
        return path
    print(f"skipped: {name} is not here. Download it (benchmarks/traces/README.md) and set {VARIABLE} to its folder.")
    return None
