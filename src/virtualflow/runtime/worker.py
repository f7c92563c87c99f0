"""A worker: the process that drives one device. Joins the training code to the job's group, then runs the script."""

from __future__ import annotations

import atexit
import signal
import socket
import sys
import traceback
from pathlib import Path
from types import ModuleType

import torch

from virtualflow.core import membership
from virtualflow.core.devices import CPU, type_of
from virtualflow.core.emulation import Emulated
from virtualflow.core.membership import Job
from virtualflow.errors import ConfigError, CoordinatorLostError, PeerLostError, VirtualFlowError
from virtualflow.runtime.member import Leave, Member
from virtualflow.runtime.spec import Failure, WorkerSpec
from virtualflow.runtime.wire import Wire
from virtualflow.train import trainer as _preloaded  # noqa: F401  (before the fork, so that a worker starts at once)
from virtualflow.train.seeding import pin_threads
from virtualflow.train.step import is_out_of_memory


def run(spec: WorkerSpec, control: int) -> int:
    """Run the script as one worker of the job; return the process's exit code."""
    wire = Wire(socket.socket(fileno=control))
    try:
        member = _enter(spec, wire)
        membership.install(member)
        signal.signal(signal.SIGTERM, lambda *_: member.leave_when_possible())
        code = _run_script(spec)
        if code == 0:
            member.finish()
        atexit._run_exitfuncs()  # the process ends without returning to the interpreter that it was forked from
        return code
    except (Leave, CoordinatorLostError):
        return 0  # asked to go; or nobody is left to ask, and the lead has left a checkpoint
    except BaseException as error:
        # Told to the coordinator, so that it is told once.
        failure = Failure(spec.device, type(error).__name__, _told(spec, error), isinstance(error, PeerLostError))
        wire.send(failure=failure.to_json())
        return 1


def _enter(spec: WorkerSpec, wire: Wire) -> Member:
    pin_threads(spec.threads_per_device)
    device_type = _claim_device(spec)
    job = Job(
        spec.job_id,
        Path(spec.job_folder),
        spec.audit,
        spec.threads_per_device,
        device_type,
        spec.checkpoint_every,
        Path(spec.resume_from) if spec.resume_from else None,
        Emulated.from_json(spec.emulated) if spec.emulated else None,
        spec.node_sizes,
        spec.mixed,
        spec.profiling,
    )
    return Member(spec, job, wire)


def _claim_device(spec: WorkerSpec) -> str:
    wanted = type_of(spec.device)
    if spec.emulated is not None or spec.device_type == "cpu":
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


def _run_script(spec: WorkerSpec) -> int:
    snapshot = Path(spec.job_folder, "snapshot")
    sys.argv = [spec.script, *spec.arguments]
    # As under `python script.py`, but from the snapshot: what was edited since the job began does not count.
    sys.path[:1] = [str(snapshot), str(Path(spec.script).resolve().parent)]
    main = ModuleType("__main__")
    main.__file__ = spec.script
    sys.modules["__main__"] = main
    try:
        source = (snapshot / Path(spec.script).name).read_bytes()
        exec(compile(source, spec.script, "exec"), main.__dict__)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    return 0


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
