"""Workers on a Ray cluster as seen from the coordinator's machine, and the actors through which they are reached."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any, Self

from virtualflow.backends import ray_connection
from virtualflow.backends.ray_connection import RayError, ray
from virtualflow.backends.remote_io import RemoteIO
from virtualflow.backends.remote_workers import JobFiles, MachineAgent
from virtualflow.errors import LaunchError
from virtualflow.job.backend import Place
from virtualflow.job.folder import JobFolder
from virtualflow.job.json_lines import encoded
from virtualflow.job.spec import Failure, WorkerSpec
from virtualflow.program.manifest import read_modules

SILENCE_SECONDS = 10.0  # an agent answers every second: after this long it is lost, even if Ray still lists it
PLACE_SECONDS = 60.0  # for all first workers to have their devices
WARN_SECONDS = 10.0  # of waiting for a device, before the job's log says so
END_SECONDS = 3.0
TICK_SECONDS = 0.2
KILLED = -signal.SIGKILL


class DeviceHolder:
    """The actor that has a device."""

    def where(self) -> tuple[str, dict[str, str]]:
        """Its machine, and what makes a process see this device and no other."""
        context = ray.get_runtime_context()
        has_gpu = bool(context.get_accelerator_ids().get("GPU"))
        visible = {name: os.environ[name] for name in ("CUDA_VISIBLE_DEVICES",) if name in os.environ and has_gpu}
        return context.get_node_id(), visible

    def stay(self) -> None:
        """Blocks for ever: a caller that waits for this notices when the actor is lost."""
        threading.Event().wait()


class AgentActor(MachineAgent):
    """An agent that Ray has placed."""

    def __init__(self, threads_per_device: int, hash_seed: str, preload: tuple[str, ...]) -> None:
        super().__init__(threads_per_device, str(ray.util.get_node_ip_address()), hash_seed, preload)


class Agents:
    """Those of the machines that have had a worker."""

    def __init__(self, threads_per_device: int, hash_seed: str, preload: tuple[str, ...]) -> None:
        self._settings = threads_per_device, hash_seed, preload
        self._lock = threading.Lock()
        self._known: dict[str, AgentHandle] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for agent in self._known.values():
            agent.end()

    def on(self, machine_id: str) -> AgentHandle:
        """The one of a machine, once it is ready."""
        with self._lock:
            agent = self._known.get(machine_id)
            if agent is None or agent.lost.is_set():
                agent = self._known[machine_id] = AgentHandle(machine_id, *self._settings)
        agent.ready()
        return agent


class AgentHandle:
    """An agent as seen from here. A thread reads what all its workers write."""

    def __init__(self, machine_id: str, *settings: Any) -> None:
        """*settings* are the agent's own arguments."""
        options = {"num_cpus": 0, "concurrency_groups": {"read": 1, "write": 1}}
        self.actor = ray_connection.actor(AgentActor, machine_id, options, *settings)
        self.address = ""  # of its machine, once it is ready
        self.lost = threading.Event()
        self._prepared = self.actor.prepare.remote(os.getcwd())
        self._starting = threading.Lock()
        self._reader: threading.Thread | None = None
        self._workers: dict[int, RayWorker] = {}

    def ready(self) -> None:
        try:
            self.address = str(ray.get(self._prepared))
        except RayError:
            self.lost.set()  # the next worker there tries again
            ray_connection.end(self.actor)
            raise
        with self._starting:
            if self._reader is None:
                self._reader = threading.Thread(target=self._read_all, daemon=True)
                self._reader.start()

    def end(self) -> None:
        ray_connection.end(self.actor)
        if self._reader is not None:
            self._reader.join(END_SECONDS)

    def start(self, worker: RayWorker, environment: dict[str, str]) -> None:
        self._workers[worker.number] = worker
        files = None if ray.get(self.actor.sees.remote(worker.spec.job_folder)) else _job_files(worker.spec)
        started = self.actor.start.remote(worker.number, encoded(worker.spec), environment, files)
        worker.runs_on(self, int(ray.get(started)))
        if self.lost.is_set():
            worker.end(KILLED)

    def write(self, number: int, data: bytes) -> None:
        with contextlib.suppress(RayError):
            self.actor.write.options(concurrency_group="write").remote(number, data)

    def kill(self, number: int, signal_number: int) -> None:
        with contextlib.suppress(RayError):
            self.actor.kill.remote(number, signal_number)

    def _read_all(self) -> None:
        read = self.actor.read.options(concurrency_group="read")
        try:
            while True:
                chunks, ended = ray.get(read.remote(), timeout=SILENCE_SECONDS)
                for number, stream, data in chunks:
                    self._workers[number].io.write(stream, data)
                for number, code in ended:
                    self._workers.pop(number).end(code)
        except Exception:  # whatever it is: nothing comes from these workers any more
            self.lost.set()
            ray_connection.end(self.actor)
            for worker in list(self._workers.values()):
                worker.end(KILLED)


class RayWorker:
    """A worker as seen from here: its device's holder, its agent, and its output and line."""

    def __init__(self, number: int, spec: WorkerSpec, holder: Any, descriptors: tuple[int, int, int]) -> None:
        self.number = number
        self.spec = spec
        self.job_id, self.device = spec.job_id, spec.device
        self.place = Place("", 0)
        self.ended = threading.Event()
        self._holder = holder
        self._agent: AgentHandle | None = None
        self._code = KILLED
        self._unwanted = False
        self.io = RemoteIO(Path(spec.job_folder), *descriptors)

    def is_wanted(self) -> bool:
        return not self._unwanted

    def once_placed(self) -> tuple[str, dict[str, str]]:
        """Wait for the device. A worker that joins later waits until it is asked to end."""
        began, warned = time.monotonic(), False
        where = self._holder.where.remote()
        while not ray.wait([where], timeout=TICK_SECONDS)[0]:
            waited_seconds = time.monotonic() - began
            if not self.spec.joins and waited_seconds > PLACE_SECONDS:
                raise LaunchError(
                    f"device {self.device} did not become free within {PLACE_SECONDS:.0f} s: other programs use the "
                    f"Ray cluster's devices ({ray_connection.free()} are free). Use fewer devices, or wait until those "
                    "have ended."
                )
            if not warned and waited_seconds > WARN_SECONDS:
                warned = True
                self.io.write("stderr", f"device {self.device}: waiting until the Ray cluster has one free\n".encode())
        machine_id, environment = ray.get(where)
        return str(machine_id), dict(environment)

    def runs_on(self, agent: AgentHandle, pid: int) -> None:
        self.place = Place(agent.address, pid)
        self._agent = agent
        self.io.connect(lambda data: agent.write(self.number, data))
        if self._unwanted:
            agent.kill(self.number, signal.SIGKILL)

    def until_its_end(self) -> int:
        """Return the exit code. If the actor that has the device is lost, so is the worker."""
        stays = self._holder.stay.options(concurrency_group="stay").remote()
        ray.wait([stays])
        if not self.ended.is_set() and self._agent is not None:
            self._agent.kill(self.number, signal.SIGKILL)
            self.ended.wait(SILENCE_SECONDS)
        return self._code

    def kill(self, signal_number: int) -> None:
        if self._agent is not None:
            self._agent.kill(self.number, signal_number)
        else:
            self._unwanted = True
            ray_connection.end(self._holder)

    def end(self, code: int) -> None:
        """The worker's process is no more: its device is free."""
        self._code = code
        self.ended.set()
        ray_connection.end(self._holder)

    def fail(self, text: str) -> int:
        """The worker could not be started. For one that was to join, that is a loss like any other."""
        if self._unwanted:
            return KILLED
        if self.spec.joins:
            self.io.write("stderr", f"{text}\n".encode())
            return KILLED
        self.io.fail(Failure(self.device, "LaunchError", f"{text}\n", False))
        return 1

    def close(self) -> None:
        self.ended.set()
        ray_connection.end(self._holder)
        self.io.close()


def _job_files(spec: WorkerSpec) -> JobFiles:
    checkpoint = Path(spec.resume_from).read_bytes() if spec.resume_from else None
    return JobFiles(read_modules(JobFolder(Path(spec.job_folder)).snapshot), checkpoint)
