"""``vf logs``: the output of a job, on this machine or at ``$VF_CLUSTER``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Annotated

import typer

from virtualflow.cli.jobs import JobArgument
from virtualflow.core.job_state import ENDED
from virtualflow.errors import ConfigError
from virtualflow.job.folder import JobFolder
from virtualflow.job.output import LEAD_LOG, log_of
from virtualflow.manager.client import Client


def logs(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the job ends.")] = False,
    device: Annotated[
        str | None, typer.Option(help="Show this device's output instead of the lead's.", metavar="DEVICE")
    ] = None,
) -> None:
    """Print the output of a job's lead worker."""
    if (manager := Client.remote()) is not None:
        if device is not None:
            raise ConfigError("--device: from another machine, only the lead's output can be read")
        read, is_over = _remote_log(manager, manager.job_id(job))
    else:
        read, is_over = _local_log(JobFolder.of(job), log_of(device) if device is not None else LEAD_LOG)
    try:
        while True:
            ended = is_over()  # asked first: what was printed before that is there then
            while text := read():
                sys.stdout.write(text)
                sys.stdout.flush()
            if not follow or ended:
                return
            time.sleep(0.2)
    except KeyboardInterrupt:
        return


Log = tuple[Callable[[], str], Callable[[], bool]]  # reads what is new, and whether nothing more comes


def _local_log(folder: JobFolder, name: str) -> Log:
    path, position = folder.path / "logs" / name, 0

    def read() -> str:
        nonlocal position
        if not path.exists():
            return ""
        with path.open("rb") as file:
            file.seek(position)
            data = file.read()
            position = file.tell()
        return data.decode(errors="replace")

    return read, lambda: folder.read_state().state.is_ended


def _remote_log(manager: Client, job: str) -> Log:
    position = 0

    def read() -> str:
        nonlocal position
        answer = manager.get(f"/api/jobs/{job}/logs?offset={position}&tail=false")
        position = answer["offset"]
        return str(answer["text"])

    return read, lambda: manager.get(f"/api/jobs/{job}")["state"] in ENDED
