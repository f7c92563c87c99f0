"""Workers on a Ray cluster.

An actor holds each device, wherever Ray finds one; another one on each machine, its *agent*, forks the workers there.
All that passes between the coordinator and a worker goes through Ray's own calls. An actor or a machine that is lost,
or silent for a while, is workers that were killed.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import select
import signal
import socket
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from virtualflow.backends import machines as clusters
from virtualflow.backends import ray_connection
from virtualflow.backends.ray_connection import RayError, RayTaskError, connected, machines
from virtualflow.backends.ray_workers import END_SECONDS, KILLED, Agents, DeviceHolder, RayWorker
from virtualflow.backends.start_barrier import StartBarrier
from virtualflow.core.devices import type_of
from virtualflow.errors import LaunchError
from virtualflow.job.backend import Exit, Place
from virtualflow.job.spec import WorkerSpec


class RayBackend:
    """Starts workers on the devices of a Ray cluster: on any machine, or on the one that a device is *pinned* to."""

    def __init__(
        self,
        *,
        threads_per_device: int = 1,
        hash_seed: str = "0",
        device_type: str = "auto",
        emulated: Collection[str] = (),
        pinned: Mapping[str, str] | None = None,
        address: str | None = None,
        preload: Sequence[str] = (),
    ) -> None:
        self._threads = threads_per_device
        self._agent_settings = threads_per_device, hash_seed, tuple(preload)
        self._any_gpu = device_type != "cpu"
        self._emulated = {type_of(device) for device in emulated}
        self._pinned = pinned or {}
        self._cluster = address
        self._numbers = itertools.count(1)
        self._workers: dict[int, RayWorker] = {}
        self._exits: queue.SimpleQueue[Exit] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        with ExitStack() as owned:
            self.address = owned.enter_context(connected(self._cluster))
            self._woken, self._wake = socket.socketpair()
            self._woken.setblocking(False)
            owned.callback(self._woken.close)
            owned.callback(self._wake.close)
            self._agents = owned.enter_context(Agents(*self._agent_settings))
            self._barrier = StartBarrier()
            owned.callback(self._end_all)
            self._owned = owned.pop_all()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._owned.close()

    def check(self, devices: Sequence[str]) -> None:
        clusters.check(devices, machines(), self._emulated, self._threads, any_gpu=self._any_gpu)

    def start(self, spec: WorkerSpec, stdout: int, stderr: int, control: int) -> int:
        number = next(self._numbers)
        if not spec.joins:
            self._barrier.expect(spec.job_id, spec.devices)
        worker = RayWorker(number, spec, self._hold(spec.device), (stdout, stderr, control))
        self._workers[number] = worker
        threading.Thread(target=self._attend, args=(worker,), daemon=True).start()
        return number

    def exits(self, timeout_seconds: float = 0.0) -> list[Exit]:
        if timeout_seconds and self._exits.empty():
            select.select([self._woken], [], [], timeout_seconds)
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)
        return [self._exits.get() for _ in range(self._exits.qsize())]

    def kill(self, process: int, signal_number: int) -> None:
        if process in self._workers:
            self._workers[process].kill(signal_number)

    def place_of(self, process: int) -> Place:
        return self._workers[process].place

    def fileno(self) -> int:
        return self._woken.fileno()

    def _hold(self, device: str) -> Any:
        """An actor that has the device, or will have it."""
        wanted = clusters.request(type_of(device), machines(), self._threads, any_gpu=self._any_gpu)
        amounts = {"num_cpus": wanted.cpus, "num_gpus": wanted.gpus, "resources": dict(wanted.resources)}
        return ray_connection.actor(
            DeviceHolder, self._pinned.get(device), amounts | {"concurrency_groups": {"stay": 1}}
        )

    def _attend(self, worker: RayWorker) -> None:
        """A worker from its device's grant to its end, in a thread of its own."""
        code = KILLED
        try:
            machine, environment = worker.once_placed()
            agent = self._agents.on(machine)
            self._barrier.arrive(worker.job_id, worker.device)
            self._barrier.wait(worker.job_id, worker.is_wanted)
            agent.start(worker, environment)
            code = worker.until_its_end()
        except RayTaskError as error:
            code = worker.fail(str(error.cause or error))
        except (LaunchError, RayError) as error:
            code = worker.fail(str(error))
        finally:
            self._barrier.arrive(worker.job_id, worker.device)
            worker.close()
            self._exits.put(Exit(worker.number, code))
            with contextlib.suppress(OSError):
                self._wake.send(b".")

    def _end_all(self) -> None:
        for worker in self._workers.values():
            worker.kill(signal.SIGKILL)
        deadline = time.monotonic() + END_SECONDS
        for worker in self._workers.values():
            worker.ended.wait(max(0.0, deadline - time.monotonic()))
