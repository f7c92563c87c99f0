"""A worker: the process that drives one device. Joins the training code to the job's group, then runs the script."""

from __future__ import annotations

import atexit
import contextlib
import runpy
import signal
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch

from virtualflow.core import membership
from virtualflow.core.mapping import Mapping, assign, spread
from virtualflow.core.membership import Job
from virtualflow.errors import ConfigError, PeerLostError, VirtualFlowError
from virtualflow.runtime.rendezvous import TorchGroup, host_store, join
from virtualflow.runtime.spec import Failure, WorkerSpec, failure_file
from virtualflow.train import trainer as _preloaded  # noqa: F401  (before the fork, so that a worker starts at once)
from virtualflow.train.agreement import Agreement
from virtualflow.train.seeding import pin_threads
from virtualflow.train.step import is_out_of_memory


@dataclass(frozen=True, slots=True)
class Member:
    """This worker's membership in a job started by ``vf run``."""

    job: Job
    device: str
    devices: tuple[str, ...]
    group: TorchGroup | None
    owners: tuple[int, ...] | None

    def mapping(self, virtual_nodes: int) -> Mapping:
        if self.owners is not None:
            return assign(self.owners, virtual_nodes, self.devices)
        return spread(virtual_nodes, self.devices)


def serve_store(listening: int, port: int) -> NoReturn:
    """Host the job's store until killed."""
    _store = host_store(listening, port)
    while True:
        signal.pause()


def run(spec: WorkerSpec) -> int:
    """Run the script as one worker of the job; return the process's exit code."""
    try:
        member = _enter(spec)
        membership.install(member)
        code = _run_script(spec)
        if code == 0 and member.group is not None:
            _leave(member.group, spec)
        atexit._run_exitfuncs()  # the process ends without returning to the interpreter that it was forked from
        return code
    except BaseException as error:
        return _report(spec, error)


def _enter(spec: WorkerSpec) -> Member:
    pin_threads(spec.threads_per_device)
    device_type = _claim_device(spec)
    job = Job(spec.job_id, Path(spec.job_folder), spec.audit, spec.threads_per_device, device_type)
    group = None
    if len(spec.devices) > 1:
        group = join(
            spec.store_host, spec.store_port, spec.generation, spec.rank, len(spec.devices), spec.patience_seconds
        )
    return Member(job, spec.device, spec.devices, group, spec.owners)


def _claim_device(spec: WorkerSpec) -> str:
    if spec.device_type == "cpu" or (spec.device_type == "auto" and not torch.cuda.is_available()):
        return "cpu"
    present = torch.cuda.device_count()
    if spec.rank >= present:
        raise ConfigError(
            f"device {spec.device} does not exist: this machine has {present} CUDA device(s). Use at most that many, "
            "or --device-type cpu."
        )
    torch.cuda.set_device(spec.rank)
    return "cuda"


def _run_script(spec: WorkerSpec) -> int:
    sys.argv = [spec.script, *spec.arguments]
    sys.path[0] = str(Path(spec.script).resolve().parent)  # as under `python script.py`
    try:
        runpy.run_path(spec.script, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    return 0


def _leave(group: TorchGroup, spec: WorkerSpec) -> None:
    """Stay until the others are done: a worker that left early would break their last step."""
    with contextlib.suppress(PeerLostError):  # the others left first, or have something else to do
        Agreement(group, spec.devices).check("end of the script")


def _report(spec: WorkerSpec, error: BaseException) -> int:
    """Leave the failure where the coordinator finds it, so that it is told once."""
    failure = Failure(spec.device, type(error).__name__, _told(spec, error), isinstance(error, PeerLostError))
    folder = Path(spec.job_folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / failure_file(spec.device)).write_text(failure.to_json())
    return 1


def _told(spec: WorkerSpec, error: BaseException) -> str:
    """The traceback from the script on; for an error that explains itself, without the frames of this library."""
    told = traceback.TracebackException.from_exception(error)
    start = next((number for number, frame in enumerate(told.stack) if frame.filename == spec.script), 0)
    del told.stack[:start]
    if isinstance(error, VirtualFlowError):
        library = str(Path(__file__).resolve().parent.parent)
        told.stack[:] = [frame for frame in told.stack if not frame.filename.startswith((library, "<frozen"))]
        told.__cause__ = None
    text = "".join(told.format())
    if is_out_of_memory(error) and not isinstance(error, VirtualFlowError):
        text += "The device ran out of memory: more virtual nodes (each is then smaller) need less of it.\n"
    return text
