"""Where jobs are kept on this machine, and what they are called."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path


def home() -> Path:
    """Where jobs leave what they write: ``$VF_HOME``, else a folder in the home directory."""
    given = os.environ.get("VF_HOME")
    return Path(given) if given else Path.home() / ".virtualflow"


def profiles_of(script: str) -> Path:
    """Where ``vf profile`` keeps the profiles of a script."""
    return home() / "profiles" / Path(script).stem


def new_job_id() -> str:
    """An id that sorts by time and is easy to type."""
    return time.strftime("%m%d-%H%M%S-") + secrets.token_hex(2)
