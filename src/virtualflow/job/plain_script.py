"""A script that trains under plain python is a job, too: ``vf status`` shows it, and ``vf clean`` removes it."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys

from virtualflow.core.job_state import JobState
from virtualflow.core.membership import JobContext
from virtualflow.job.folder import JobFolder, JobSpec
from virtualflow.job.status import JobStatus, WorkerStatus

_DEVICE = "0"


def register(job: JobContext, virtual_nodes: int) -> None:
    """Give the job of this process a folder that says what runs, for as long as it does; print its id to stderr."""
    folder = JobFolder(job.folder)
    owned = contextlib.ExitStack()
    with contextlib.suppress(OSError):  # a disk that is full, or not ours: the script trains all the same
        folder.make()
        folder.change(JobSpec.of(job.id, os.path.abspath(sys.argv[0]), sys.argv[1:], (_DEVICE,)))
        folder.write_state(_status(JobState.RUNNING, virtual_nodes))
        owned.enter_context(folder.locked())
        atexit.register(_end, os.getpid(), folder, owned)
        print(f"job {job.id}", file=sys.stderr, flush=True)


def _end(process: int, folder: JobFolder, owned: contextlib.ExitStack) -> None:
    if process != os.getpid():
        return  # a copy of the process, such as a loader's
    failed = getattr(sys, "last_value", None) is not None  # the exception that has ended the script
    with contextlib.suppress(OSError), owned:
        folder.write_state(_status(JobState.FAILED if failed else JobState.DONE, 0))


def _status(state: JobState, virtual_nodes: int) -> JobStatus:
    worker = WorkerStatus(_DEVICE, pid=os.getpid(), virtual_nodes=tuple(range(virtual_nodes)))
    return JobStatus(state, virtual_nodes=virtual_nodes or None, workers=(worker,) if virtual_nodes else ())
