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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

from virtualflow.core import device_choice
from virtualflow.core.devices import CPU
from virtualflow.core.job_view import DeviceUse
from virtualflow.core.membership import JobContext
from virtualflow.core.seeds import derive
from virtualflow.errors import CoordinatorLostError, LaunchError, NoTrainerError, PeerLostError, VirtualFlowError
from virtualflow.job.lasting_wire import LastingWire
from virtualflow.job.member import Leave, Member
from virtualflow.job.spec import Failure, WorkerSpec
from virtualflow.job.wire import BEATS
from virtualflow.job.wire_messages import (
    FileRead,
    FileWritten,
    JoinRefused,
    Message,
    ModuleLoaded,
    ResourceUse,
    WorkerFailed,
)
from virtualflow.program import provenance, source
from virtualflow.program.file_reads import ChangedFile, Reading
from virtualflow.program.manifest import Program
from virtualflow.program.overlay import Overlay
from virtualflow.program.runner import run_script
from virtualflow.solver.profiled_grids import profiled_grids
from virtualflow.system import device_locks
from virtualflow.system.hash_seed import hash_seed_here
from virtualflow.system.usage import CpuMeter, resident_bytes
from virtualflow.train import accelerators, instruments, solo
from virtualflow.train import trainer as _preloaded  # noqa: F401  (before the fork, so that a worker starts at once)
from virtualflow.train.memory_advice import is_out_of_memory
from virtualflow.train.seeding import pin_threads, reseed
from virtualflow.train.shared_errors import device_of, place_notes

_log = logging.getLogger("virtualflow")
USE_SECONDS = 2.0  # between two reports of what this process uses
NO_TRAINER_CODE = 3  # the exit code of a job whose script trained without a Trainer on several devices
WITHOUT_TRAINER = (
    "every device trains a copy of its own, of which all but one are lost, because nothing joins them. Let a "
    "vf.Trainer make the steps (`vf port {script}` says what to change), or use one device."
)


def run(spec: WorkerSpec, control: int, outputs: Sequence[int] = ()) -> int:
    """Run the script as one worker of the job; return the process's exit code.

    *outputs* are the other ends of its stdout and stderr, if they are pipes.
    """
    process = os.getpid()
    wire = LastingWire(socket.socket(fileno=control))
    threading.Thread(target=_beat, args=(wire, spec.patience_seconds / BEATS), daemon=True).start()
    snapshot, reports = Path(spec.job_folder, "snapshot"), _Reports(wire)
    overlay = Overlay(Program.of(snapshot, spec.description.script), snapshot, reports)
    reading = Reading(overlay, spec.job_folder, lambda: Program.of(snapshot, spec.description.script), reports)
    try:
        member = _enter(spec, wire, outputs, lambda: _program_facts(overlay, reading))
        solo.install(member)
        signal.signal(signal.SIGTERM, lambda *_: member.leave_when_possible())
        _await_first_step(spec, member, reading)
        reading.start()
        try:
            code = run_script(overlay, spec.description.script, spec.description.arguments)
        except instruments.ScriptDone:
            code = 0
        if os.getpid() != process:
            return code  # a process that the script has forked, and that has come to the script's end
        if code == 0:
            _check_trainer(spec, member)
            member.finish()
        atexit._run_exitfuncs()  # the process ends without returning to the interpreter that it was forked from
        return code
    except (Leave, CoordinatorLostError):
        return 0  # it was released; or the coordinator is gone, and the lead has left a checkpoint
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
        device = device_of(error) or spec.device
        failure = Failure(device, type(error).__name__, text, isinstance(error, PeerLostError))
        wire.send_last(WorkerFailed(failure))
        return NO_TRAINER_CODE if isinstance(error, NoTrainerError) else 1


def _beat(wire: LastingWire, seconds: float) -> None:
    """Send heartbeats to the coordinator, independent of the script, with this process's use of its machine."""
    meter = CpuMeter()
    while True:
        time.sleep(min(seconds, USE_SECONDS))
        member = solo.installed()
        sizes = member.stage_sizes if member is not None else ()
        wire.send(ResourceUse(DeviceUse(meter.cores(), resident_bytes(), accelerators.allocated_bytes(), sizes)))


class _Reports:
    """Sends the coordinator which files the script uses. See ``program.overlay.Reports``."""

    def __init__(self, wire: LastingWire) -> None:
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


def _enter(spec: WorkerSpec, wire: LastingWire, outputs: Sequence[int], facts: Callable[[], dict[str, Any]]) -> Member:
    described = spec.description
    if described.hash_seed != (here := hash_seed_here()):
        raise LaunchError(
            f"the job has PYTHONHASHSEED={described.hash_seed}, and this worker {here}: sets would have another order. "
            "Set it in the environment of the worker's launcher: Python reads it when it starts."
        )
    pin_threads(described.threads_per_device)
    device_type = claim_device(spec)
    reseed(derive(0, spec.job_id))  # without a seed, too, all workers draw the same, whenever they start
    job = JobContext(
        spec.job_id,
        Path(spec.job_folder),
        described,
        device_type,
        Path(spec.resume_from) if spec.resume_from else None,
        spec.mixed,
        instruments.chosen(spec.instruments, Path(spec.job_folder)),
        profiled_grids(described),
        facts,
    )
    return Member(spec, job, wire, outputs)


def claim_device(spec: WorkerSpec) -> str:
    """Make one of the machine's devices this worker's own, until it ends; return torch's word for its type."""
    device_type = spec.description.device_type
    if spec.instruments.get("emulated") or device_type == CPU:
        return CPU
    present = accelerators.present()
    if device_choice.runs_on_cpu(spec.device, device_type, present):
        return CPU
    if not spec.sees_one:
        device_choice.check([spec.device], device_type, present)
    indices = [0] if spec.sees_one else device_choice.candidates(spec.device, device_type, present)
    owner = f"job {spec.job_id} (process {os.getpid()})"
    index = indices[device_locks.claim([present[candidate].identity for candidate in indices], owner)]
    accelerators.use(index)
    return present[index].device_type


def _program_facts(overlay: Overlay, reading: Reading) -> dict[str, Any]:
    program = overlay.program
    facts = provenance.code_facts({**program.modules, **source.loaded()}, overlay.read, program.revision)
    files = {program.shown(file): digest[: provenance.SHORT] for file, digest in reading.digests.items()}
    return facts | {"files": files}


def _await_first_step(spec: WorkerSpec, member: Member, reading: Reading) -> None:
    """With it the job has read what it needs; and before it, a Trainer must have been made."""

    def stepped(*_: Any) -> None:
        if not reading.notes:
            return
        reading.notes = False
        if not member.has_trainer and len(spec.devices) > 1 and spec.device == spec.devices[0]:
            _log.warning("warning: %s", WITHOUT_TRAINER.format(script=spec.description.script))

    register_optimizer_step_pre_hook(stepped)


def _check_trainer(spec: WorkerSpec, member: Member) -> None:
    if member.has_trainer:
        return
    if len(spec.devices) > 1 or spec.joins:
        why = WITHOUT_TRAINER.format(script=spec.description.script)
        raise NoTrainerError(f"the script has ended, and it has made no Trainer: {why}")
    _log.warning(
        "warning: the script has ended, and it has made no Trainer: it ran as under plain python, and can be neither "
        "resized nor resumed. Let a vf.Trainer make its steps: `vf port %s` says what to change.",
        spec.description.script,
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
    # First where it was met: what a job has failed of is in the last line.
    notes = place_notes(error)
    shown.__notes__ = [note for note in shown.__notes__ or () if note not in notes]
    text = "".join([*(f"{note}\n" for note in notes), *shown.format()])
    if is_out_of_memory(error) and not isinstance(error, VirtualFlowError):
        text += "The device ran out of memory: more virtual nodes (each is then smaller) need less of it.\n"
    return text
