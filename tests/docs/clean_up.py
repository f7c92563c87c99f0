"""Ends the manager and the jobs under ``$VF_HOME`` once stdin is closed: by whoever started this, or by its death."""

from __future__ import annotations

import contextlib
import sys

from virtualflow.errors import VirtualFlowError
from virtualflow.job import control
from virtualflow.job.folder import all_jobs
from virtualflow.job.wire_messages import StopJob
from virtualflow.manager import service
from virtualflow.manager.client import Client


def clean_up() -> None:
    with contextlib.suppress(VirtualFlowError):  # there may be none
        service.end(Client.find(), keep_jobs=False)
    for folder in all_jobs():
        if folder.is_locked():
            with contextlib.suppress(VirtualFlowError):  # it may end meanwhile
                control.ask(folder, StopJob(checkpoint=False))


if __name__ == "__main__":
    sys.stdin.read()
    clean_up()
