"""Starting a coordinator that runs by itself, and never two for one launch.

A launch is a file in the job's folder with a token in it, written and taken under the folder's lock. The coordinator
that takes it runs the job; one that comes too late finds another token or none, and ends. So a launch whose outcome is
unknown, because the launcher died, may be repeated.
"""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from virtualflow.errors import DamagedError, LaunchError
from virtualflow.job.folder import JobFolder, read_json, write_json
from virtualflow.system import private_files

LOG = "coordinator.log"


def prepare(folder: JobFolder, checkpoint: Path | None) -> str:
    """Write the launch of a job that goes on from *checkpoint*, if there is one; return its token."""
    token = secrets.token_hex(16)
    with folder.locked():
        for old in folder.path.glob("failure*"):
            old.unlink()
        folder.write_launched()
        folder.control.unlink(missing_ok=True)  # left by a coordinator that was killed
        write_json(folder.launch, {"token": token, "checkpoint": str(checkpoint) if checkpoint else None})
    return token


def start(
    folder: JobFolder,
    token: str,
    *,
    interpreter: str = sys.executable,
    directory: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """A coordinator for the launch with that token, in a session of its own, which outlives this process."""
    command = [interpreter, "-m", "virtualflow.job.serve", folder.path.name, token]
    with open(folder.path / LOG, "ab", opener=private_files.opener) as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=directory,
            env=environment,
            start_new_session=True,
        )


def withdraw(folder: JobFolder) -> bool:
    """Withdraw a launch that has not begun; return whether that was in time."""
    try:
        with folder.locked():
            due = folder.launch.exists()
            folder.launch.unlink(missing_ok=True)
    except LaunchError:
        return False
    return due


def take(folder: JobFolder, token: str) -> tuple[bool, Path | None]:
    """Whether the launch with *token* is still to be made, and its checkpoint. The caller holds the folder's lock."""
    with contextlib.suppress(FileNotFoundError, DamagedError):
        launch = read_json(folder.launch)
        if launch.get("token") == token:
            folder.launch.unlink()
            return True, Path(launch["checkpoint"]) if launch.get("checkpoint") else None
    return False, None
