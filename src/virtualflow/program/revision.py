"""The commit that a script comes from, if it lies in a git repository."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

LOOK_SECONDS = 2.0  # a repository that takes longer is not worth the wait


@dataclass(frozen=True, slots=True)
class Revision:
    """A commit, and whether a file that belongs to it was changed since."""

    commit: str
    dirty: bool

    def __str__(self) -> str:
        return self.commit[:12] + (" and changes" if self.dirty else "")


def revision_of(folder: str) -> Revision | None:
    """Empty without git, a repository or a commit; never an error."""
    command = ["git", "-C", folder, "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        status = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=LOOK_SECONDS, check=True, env=environment
        )
    except (OSError, subprocess.SubprocessError):
        return None
    lines = status.stdout.splitlines()
    commits = [line.split()[-1] for line in lines if line.startswith("# branch.oid ")]
    if not commits or not all(character in "0123456789abcdef" for character in commits[0]):
        return None
    return Revision(commits[0], any(not line.startswith("#") for line in lines))
