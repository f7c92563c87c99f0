"""PYTHONHASHSEED, which decides the order of sets of strings, and so what a script makes of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

VARIABLE = "PYTHONHASHSEED"


def hash_seed_of(environment: Mapping[str, str]) -> str:
    """What it is for a job: a number, so that sets have one order in all its workers and in every run."""
    given = environment.get(VARIABLE, "")
    return str(int(given)) if _is_seed(given) else "0"


def hash_seed_here() -> str:
    """What it is for this process: a number, or "random"."""
    given = os.environ.get(VARIABLE, "")
    return str(int(given)) if _is_seed(given) and not sys.flags.ignore_environment else "random"


def _is_seed(text: str) -> bool:
    return text.isascii() and text.isdecimal() and int(text) < 2**32
