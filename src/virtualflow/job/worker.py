"""A worker: the process that drives one device. Joins the training code to the job's group, then runs the script."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from virtualflow.core.devices import CPU, type_of
from virtualflow.core.membership import JobContext
from virtualflow.core.seeds import derive
from virtualflow.errors import ConfigError, CoordinatorLostError, LaunchError, PeerLostError, VirtualFlowError
from virtualflow.job.member import Leave, Member
from virtualflow.job.spec import Failure, WorkerSpec
from virtualflow.job.wire import BEATS, Wire
from virtualflow.job.wire_messages import (
    TO_WORKER,
    FileRead,
    FileWritten,
    JoinRefused,
    Message,
    ModuleLoaded,
    ToWorker,
    WorkerFailed,
)
from virtualflow.program import provenance, source
from virtualflow.program.file_reads import ChangedFile, Reading
from virtualflow.program.manifest import Program
from virtualflow.program.overlay import Overlay
from virtualflow.program.runner import run_script
from virtualflow.system.hash_seed import hash_seed_here
from virtualflow.train import instruments, solo
from virtualflow.train import trainer as _preloaded  # noqa: F401  (before the fork, so that a worker starts at once)
from virtualflow.train.seeding import pin_threads, reseed
from virtualflow.train.step import is_out_of_memory

_log = logging.getLogger("virtualflow")
WITHOUT_TRAINER = (
    "every device trains a copy of its own, of which all but one are lost, because nothing joins them. Let a "
    "vf.Trainer make the steps, as in `trainer = vf.Trainer(...)`, `trainer.step(batch)`; or use one device."
)


def run(spec: WorkerSpec, control: int) -> int:
    """Run the script as one worker of the job; return the process's exit code."""
    process = os.getpid()
    wire = Wire(socket.socket(fileno=control), TO_WORKER)
    threading.Thread(target=_beat, args=(wire, spec.patience_seconds / BEATS), daemon=True).start()
    snapshot, reports = Path(spec.job_folder, "snapshot"), _Reports(wire)
    overlay = Overlay(Program.of(snapshot, spec.script), snapshot, reports)
    reading = Reading(overlay, spec.job_folder, lambda: Program.of(snapshot, spec.script), reports)
    try:
        member = _enter(spec, wire, lambda: _program_facts(overlay, reading))
        solo.install(member)
        signal.signal(signal.SIGTERM, lambda *_: member.leave_when_possible())
        _await_first_step(spec, member, reading)
        reading.start()
        try:
            code = run_script(overlay, spec.script, spec.arguments)
        except instruments.MeasurementDone:
            code = 0
        if os.getpid() != process:
            return code  # a process that the script has forked, and that has come to the script's end
        if code == 0:
            _check_trainer(spec, member)
            member.finish()
        atexit._run_exitfuncs()  # the process ends without returning to the interpreter that it was forked from
        return code
    except (Leave, CoordinatorLostError):
        return 0  # asked to go; or nobody is left to ask, and the lead has left a checkpoint
    except BaseException as error:
        if os.getpid() != process:
            traceback.print_exc()
            return 1
        if isinstance(error, ChangedFile):
            if spec.joins:
                wire.send(JoinRefused(str(error)))
                return 0
            error = LaunchError(str(error)).with_traceback(error.__traceback__)
        # Sent to the coordinator, so that it is shown once.
        text = _traceback_of(overlay.program.script, error)
        failure = Failure(spec.device, type(error).__name__, text, isinstance(error, PeerLostError))
        wire.send(WorkerFailed(failure))
        return 1


def _beat(wire: Wire[ToWorker], seconds: float) -> None:
    """Show the coordinator that this process runs, whatever its script does."""
    while True:
        time.sleep(seconds)
        wire.beat()


class _Reports:
    """Sends the coordinator which files the script uses. See ``program.overlay.Reports``."""

    def __init__(self, wire: Wire[ToWorker]) -> None:
        self._wire = wire
        self._process = os.getpid()

    def module_loaded(self, file: str, name: str, source: bytes) -> None:
        self._send(ModuleLoaded(file, name, source))

    def file_read(self, file: str, digest: str) -> None:
        self._send(FileRead(file, digest))

    def file_written(self, file: str) -> None:
        self._send(FileWritten(file))

    def _send(self, message: Message) -> None:
        if os.getpid() == self._process:  # a loader's process has the line, too, and must not write to it
            self._wire.send(message)


def _enter(spec: WorkerSpec, wire: Wire[ToWorker], facts: Callable[[], dict[str, Any]]) -> Member:
    if spec.hash_seed != (here := hash_seed_here()):
        raise LaunchError(
            f"the job has PYTHONHASHSEED={spec.hash_seed}, and this worker {here}: its sets would have another order. "
            "Whoever starts the worker must set it before Python starts."
        )
    pin_threads(spec.threads_per_device)
    reseed(derive(0, spec.job_id))  # without a seed, too, all workers draw the same, whenever they start
    device_type = _claim_device(spec)
    job = JobContext(
        spec.job_id,
        Path(spec.job_folder),
        spec.audit,
        spec.threads_per_device,
        device_type,
        spec.checkpoint_every,
        Path(spec.resume_from) if spec.resume_from else None,
        spec.node_sizes,
        spec.mixed,
        bool(spec.instruments.get("measurement")),
        instruments.chosen(spec.instruments),
        facts,
    )
    return Member(spec, job, wire)


def _claim_device(spec: WorkerSpec) -> str:
    wanted = type_of(spec.device)
    if spec.instruments.get("emulated") or spec.device_type == "cpu":
        return "cpu"
    if wanted == CPU and spec.device_type == "auto" and not torch.cuda.is_available():
        return "cpu"
    present = list(range(torch.cuda.device_count()))
    if wanted != CPU and not spec.sees_one:
        present = [number for number in present if wanted.lower() in torch.cuda.get_device_name(number).lower()]
    if spec.accelerator >= len(present):
        raise ConfigError(
            f"device {spec.device} does not exist: this machine has {len(present)} such device(s). Use at most that "
            "many, --device-type cpu, or emulate the type: --emulate WORKLOAD, or --device-file FILE."
        )
    torch.cuda.set_device(present[spec.accelerator])
    return "cuda"


def _program_facts(overlay: Overlay, reading: Reading) -> dict[str, Any]:
    program = overlay.program
    facts = provenance.code_facts({**program.modules, **source.loaded()}, overlay.read, program.revision)
    files = {program.shown(file): digest[: provenance.SHORT] for file, digest in reading.told.items()}
    return facts | {"files": files}


def _await_first_step(spec: WorkerSpec, member: Member, reading: Reading) -> None:
    """With it the job has read what it needs; and before it, a Trainer must have been made."""

    def stepped(*_: Any) -> None:
        if not reading.notes:
            return
        reading.notes = False
        if not member.has_trainer and len(spec.devices) > 1 and spec.device == spec.devices[0]:
            _log.warning("warning: %s", WITHOUT_TRAINER)

    register_optimizer_step_pre_hook(stepped)


def _check_trainer(spec: WorkerSpec, member: Member) -> None:
    if member.has_trainer:
        return
    if len(spec.devices) > 1 or spec.joins:
        raise LaunchError(f"the script has ended, and it has made no Trainer: {WITHOUT_TRAINER}")
    _log.warning(
        "warning: the script has ended, and it has made no Trainer: it ran as under plain python, and can be neither "
        "resized nor resumed. Let a vf.Trainer make its steps."
    )


def _traceback_of(script: str, error: BaseException) -> str:
    """The traceback from the script on; for an error that explains itself, without the frames of this library."""
    shown = traceback.TracebackException.from_exception(error)
    start = next((number for number, frame in enumerate(shown.stack) if frame.filename == script), 0)
    del shown.stack[:start]
    if isinstance(error, VirtualFlowError):
        library = str(Path(__file__).resolve().parent.parent)
        shown.stack[:] = [frame for frame in shown.stack if not frame.filename.startswith((library, "<frozen"))]
        shown.__cause__ = None
    text = "".join(shown.format())
    if is_out_of_memory(error) and not isinstance(error, VirtualFlowError):
        text += "The device ran out of memory: more virtual nodes (each is then smaller) need less of it.\n"
    return text
