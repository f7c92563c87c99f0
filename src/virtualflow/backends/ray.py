"""Workers on a Ray cluster.

An actor holds each device, wherever Ray finds one; another one on each machine, its *outpost*, forks the workers there.
All that passes between the coordinator and a worker goes through Ray's own calls. An actor or a machine that is lost,
or not heard of for a while, is workers that were killed.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import queue
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from virtualflow.backends import machines as clusters
from virtualflow.backends.machines import Machine
from virtualflow.backends.remote_lines import Relay
from virtualflow.backends.remote_workers import Outpost
from virtualflow.core.devices import Pool, type_of
from virtualflow.errors import LaunchError
from virtualflow.job.backend import Exit, Place
from virtualflow.job.folder import JobFolder
from virtualflow.job.spec import Failure, WorkerSpec
from virtualflow.job.tokens import parse_address
from virtualflow.program.manifest import read_modules

AUTHENTICATION = "RAY_AUTH_MODE"
_TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def _authentication() -> str:
    """As ``ray start`` decides it on this machine. Left unset, it would depend on how the address was given."""
    has_token = any(name in os.environ for name in _TOKENS) or (Path.home() / ".ray" / "auth_token").exists()
    return "token" if has_token else "disabled"


os.environ.setdefault(AUTHENTICATION, _authentication())  # Ray reads it once, when it is imported
try:
    import ray
    from ray.exceptions import RayError, RayTaskError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as error:
    raise LaunchError(
        f"--backend ray needs Ray, which can't be imported ({error}). Install it: pip install 'virtualflow[ray]'"
    ) from error

SILENCE_SECONDS = 10.0  # an outpost says something every second: after this long it is lost, whatever Ray believes
CONNECT_SECONDS = 5.0
PLACE_SECONDS = 60.0  # for all first workers to have their devices
TELL_SECONDS = 10.0  # of waiting for a device, before the job's log says so
END_SECONDS = 3.0
TICK_SECONDS = 0.2
KILLED = -signal.SIGKILL


def machines() -> list[Machine]:
    """The machines of the cluster that are alive, in an order that lasts."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    return [
        Machine(node["NodeID"], node["NodeManagerAddress"], node["Resources"])
        for node in sorted(alive, key=lambda node: str(node["NodeID"]))
    ]


def devices() -> tuple[Pool, ...]:
    """The cluster's devices by type, and how many each machine has."""
    return clusters.pools(machines())


@contextlib.contextmanager
def connected(address: str | None = None) -> Iterator[str]:
    """Be a driver of the cluster at *address* (else ``RAY_ADDRESS``, else this machine's); yields our own address."""
    ours = not ray.is_initialized()
    if ours:
        _connect(address or os.environ.get("RAY_ADDRESS") or "auto")
    try:
        yield str(ray.util.get_node_ip_address())
    finally:
        if ours:
            ray.shutdown()


def _connect(address: str) -> None:
    if address.startswith("ray://"):
        raise LaunchError(f"{address} is Ray's client protocol: run `vf` on a machine of the cluster instead")
    # Ray prints pages of its own logs when it loses a machine, amid the script's output; no setting turns that off.
    printer: Any = import_module("ray._private.worker")
    printer.print_to_stdstream = lambda *_, **__: None
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if address != "auto":  # Ray itself would try for minutes
            socket.create_connection(parse_address(address), timeout=CONNECT_SECONDS).close()
        ray.init(address=address, namespace="virtualflow", log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RayError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise LaunchError(
            f"no Ray cluster answers at {address}: {reason}. Start one with `ray start --head`, or set RAY_ADDRESS; "
            f"{AUTHENTICATION} (here: {os.environ[AUTHENTICATION]}) must be the cluster's."
        ) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray's own would end this process without its clean-up


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
    ) -> None:
        self._threads = threads_per_device
        self._hash_seed = hash_seed
        self._any_gpu = device_type != "cpu"
        self._emulated = {type_of(device) for device in emulated}
        self._pinned = pinned or {}
        self._cluster = address
        self._numbers = itertools.count(1)
        self._lines: dict[int, _Line] = {}
        self._exits: queue.SimpleQueue[Exit] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        with ExitStack() as owned:
            self.address = owned.enter_context(connected(self._cluster))
            self._woken, self._wake = socket.socketpair()
            self._woken.setblocking(False)
            owned.callback(self._woken.close)
            owned.callback(self._wake.close)
            self._outposts = owned.enter_context(_Outposts(self._threads, self._hash_seed))
            self._first = _Together()
            owned.callback(self._end_all)
            self._owned = owned.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._owned.close()

    def check(self, devices: Sequence[str]) -> None:
        clusters.check(devices, machines(), self._emulated, self._threads, any_gpu=self._any_gpu)

    def start(self, spec: WorkerSpec, stdout: int, stderr: int, control: int) -> int:
        number = next(self._numbers)
        if not spec.joins:
            self._first.expect(spec.job_id, spec.devices)
        line = _Line(number, spec, self._hold(spec.device), (stdout, stderr, control))
        self._lines[number] = line
        threading.Thread(target=self._attend, args=(line,), daemon=True).start()
        return number

    def exits(self, timeout_seconds: float = 0.0) -> list[Exit]:
        if timeout_seconds and self._exits.empty():
            select.select([self._woken], [], [], timeout_seconds)
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)
        return [self._exits.get() for _ in range(self._exits.qsize())]

    def kill(self, process: int, signal_number: int) -> None:
        if process in self._lines:
            self._lines[process].kill(signal_number)

    def place_of(self, process: int) -> Place:
        return self._lines[process].place

    def fileno(self) -> int:
        return self._woken.fileno()

    def _hold(self, device: str) -> Any:
        """An actor that has the device, or will have it."""
        wanted = clusters.request(type_of(device), machines(), self._threads, any_gpu=self._any_gpu)
        amounts = {"num_cpus": wanted.cpus, "num_gpus": wanted.gpus, "resources": dict(wanted.resources)}
        return _actor(_Holder, self._pinned.get(device), amounts | {"concurrency_groups": {"stay": 1}})

    def _attend(self, line: _Line) -> None:
        """A worker from its device's grant to its end, in a thread of its own."""
        code = KILLED
        try:
            machine, environment = line.once_placed()
            outpost = self._outposts.on(machine)
            self._first.arrive(line.job_id, line.device)
            self._first.wait(line.job_id, line.is_wanted)
            outpost.start(line, environment)
            code = line.until_its_end()
        except RayTaskError as error:
            code = line.fail(str(error.cause or error))
        except (LaunchError, RayError) as error:
            code = line.fail(str(error))
        finally:
            self._first.arrive(line.job_id, line.device)
            line.close()
            self._exits.put(Exit(line.number, code))
            with contextlib.suppress(OSError):
                self._wake.send(b".")

    def _end_all(self) -> None:
        for line in self._lines.values():
            line.kill(signal.SIGKILL)
        deadline = time.monotonic() + END_SECONDS
        for line in self._lines.values():
            line.ended.wait(max(0.0, deadline - time.monotonic()))


class _Holder:
    """The actor that has a device."""

    def where(self) -> tuple[str, dict[str, str]]:
        """Its machine, and what makes a process see this device and no other."""
        context = ray.get_runtime_context()
        has_gpu = bool(context.get_accelerator_ids().get("GPU"))
        visible = {name: os.environ[name] for name in ("CUDA_VISIBLE_DEVICES",) if name in os.environ and has_gpu}
        return context.get_node_id(), visible

    def stay(self) -> None:
        """For good: whoever waits for this hears when the actor is lost."""
        threading.Event().wait()


class _OutpostActor(Outpost):
    """An outpost that Ray has placed."""

    def __init__(self, threads_per_device: int, hash_seed: str) -> None:
        super().__init__(threads_per_device, str(ray.util.get_node_ip_address()), hash_seed)


class _Outposts:
    """Those of the machines that have had a worker."""

    def __init__(self, threads_per_device: int, hash_seed: str) -> None:
        self._settings = threads_per_device, hash_seed
        self._lock = threading.Lock()
        self._known: dict[str, _OutpostLine] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for outpost in self._known.values():
            outpost.end()

    def on(self, machine_id: str) -> _OutpostLine:
        """The one of a machine, once it is ready."""
        with self._lock:
            outpost = self._known.get(machine_id)
            if outpost is None or outpost.lost.is_set():
                outpost = self._known[machine_id] = _OutpostLine(machine_id, *self._settings)
        outpost.ready()
        return outpost


class _OutpostLine:
    """An outpost as seen from here. A thread listens to all its workers."""

    def __init__(self, machine_id: str, threads_per_device: int, hash_seed: str) -> None:
        options = {"num_cpus": 0, "concurrency_groups": {"hear": 1, "tell": 1}}
        self.actor = _actor(_OutpostActor, machine_id, options, threads_per_device, hash_seed)
        self.lost = threading.Event()
        self._prepared = self.actor.prepare.remote(os.getcwd())
        self._starting = threading.Lock()
        self._listener: threading.Thread | None = None
        self._lines: dict[int, _Line] = {}

    def ready(self) -> None:
        try:
            self.address = str(ray.get(self._prepared))
        except RayError:
            self.lost.set()  # the next worker there tries again
            _end(self.actor)
            raise
        with self._starting:
            if self._listener is None:
                self._listener = threading.Thread(target=self._listen, daemon=True)
                self._listener.start()

    def end(self) -> None:
        _end(self.actor)
        if self._listener is not None:
            self._listener.join(END_SECONDS)

    def start(self, line: _Line, environment: dict[str, str]) -> None:
        self._lines[line.number] = line
        furniture = None if ray.get(self.actor.sees.remote(line.spec.job_folder)) else _furniture(line.spec)
        started = self.actor.start.remote(line.number, line.spec.to_json(), environment, furniture)
        line.runs_on(self, int(ray.get(started)))
        if self.lost.is_set():
            line.end(KILLED)

    def tell(self, number: int, data: bytes) -> None:
        with contextlib.suppress(RayError):
            self.actor.tell.options(concurrency_group="tell").remote(number, data)

    def kill(self, number: int, signal_number: int) -> None:
        with contextlib.suppress(RayError):
            self.actor.kill.remote(number, signal_number)

    def _listen(self) -> None:
        hear = self.actor.hear.options(concurrency_group="hear")
        try:
            while True:
                heard, ended = ray.get(hear.remote(), timeout=SILENCE_SECONDS)
                for number, stream, data in heard:
                    self._lines[number].relay.write(stream, data)
                for number, code in ended:
                    self._lines.pop(number).end(code)
        except Exception:  # whatever it is: nobody hears these workers any more
            self.lost.set()
            _end(self.actor)
            for line in list(self._lines.values()):
                line.end(KILLED)


class _Together:
    """The first workers of a job start when all have their devices: they wait for each other from then on."""

    def __init__(self) -> None:
        self._missing: dict[str, set[str]] = {}
        self._change = threading.Condition()

    def expect(self, job_id: str, devices: Sequence[str]) -> None:
        with self._change:
            self._missing.setdefault(job_id, set(devices))

    def arrive(self, job_id: str, device: str) -> None:
        with self._change:
            self._missing.get(job_id, set()).discard(device)
            if not self._missing.get(job_id):
                self._missing.pop(job_id, None)
                self._change.notify_all()

    def wait(self, job_id: str, is_wanted: Callable[[], bool]) -> None:
        with self._change:
            while job_id in self._missing and is_wanted():
                self._change.wait(TICK_SECONDS)


class _Line:
    """A worker as seen from here: its device's holder, its outpost, and the coordinator's lines to it."""

    def __init__(self, number: int, spec: WorkerSpec, holder: Any, descriptors: tuple[int, int, int]) -> None:
        self.number = number
        self.spec = spec
        self.job_id, self.device = spec.job_id, spec.device
        self.place = Place("", 0)
        self.ended = threading.Event()
        self._holder = holder
        self._outpost: _OutpostLine | None = None
        self._code = KILLED
        self._unwanted = False
        self.relay = Relay(Path(spec.job_folder), *descriptors)

    def is_wanted(self) -> bool:
        return not self._unwanted

    def once_placed(self) -> tuple[str, dict[str, str]]:
        """Wait for the device. A worker that joins later does so for as long as nobody asks it to end."""
        began, told = time.monotonic(), False
        where = self._holder.where.remote()
        while not ray.wait([where], timeout=TICK_SECONDS)[0]:
            waited_seconds = time.monotonic() - began
            if not self.spec.joins and waited_seconds > PLACE_SECONDS:
                raise LaunchError(
                    f"device {self.device} did not become free within {PLACE_SECONDS:.0f} s: other programs use the "
                    f"Ray cluster's devices ({_free()} are free). Use fewer, or wait until they have ended."
                )
            if not told and waited_seconds > TELL_SECONDS:
                told = True
                self.relay.write(
                    "stderr", f"device {self.device}: waiting until the Ray cluster has one free\n".encode()
                )
        machine_id, environment = ray.get(where)
        return str(machine_id), dict(environment)

    def runs_on(self, outpost: _OutpostLine, pid: int) -> None:
        self.place = Place(outpost.address, pid)
        self._outpost = outpost
        self.relay.connect(lambda data: outpost.tell(self.number, data))
        if self._unwanted:
            outpost.kill(self.number, signal.SIGKILL)

    def until_its_end(self) -> int:
        """Return the exit code. If the actor that has the device is lost, so is the worker."""
        stays = self._holder.stay.options(concurrency_group="stay").remote()
        ray.wait([stays])
        if not self.ended.is_set() and self._outpost is not None:
            self._outpost.kill(self.number, signal.SIGKILL)
            self.ended.wait(SILENCE_SECONDS)
        return self._code

    def kill(self, signal_number: int) -> None:
        if self._outpost is not None:
            self._outpost.kill(self.number, signal_number)
        else:
            self._unwanted = True
            _end(self._holder)

    def end(self, code: int) -> None:
        """The worker's process is no more: its device is free."""
        self._code = code
        self.ended.set()
        _end(self._holder)

    def fail(self, text: str) -> int:
        """The worker could not be started. For one that was to join, that is a loss like any other."""
        if self._unwanted:
            return KILLED
        if self.spec.joins:
            self.relay.write("stderr", f"{text}\n".encode())
            return KILLED
        self.relay.fail(Failure(self.device, "LaunchError", f"{text}\n", False))
        return 1

    def close(self) -> None:
        self.ended.set()
        _end(self._holder)
        self.relay.close()


def _furniture(spec: WorkerSpec) -> Any:
    """What a worker needs that does not see the job's folder."""
    checkpoint = Path(spec.resume_from).read_bytes() if spec.resume_from else None
    return read_modules(JobFolder(Path(spec.job_folder)).snapshot), checkpoint


def _actor(kind: type, machine_id: str | None, options: dict[str, Any], *arguments: Any) -> Any:
    """An actor, on a certain machine if one is given."""
    where = NodeAffinitySchedulingStrategy(machine_id, soft=False) if machine_id is not None else "DEFAULT"
    remote: Any = ray.remote
    return remote(**options)(kind).options(scheduling_strategy=where).remote(*arguments)


def _end(actor: Any) -> None:
    with contextlib.suppress(RayError, RuntimeError, ValueError):
        ray.kill(actor)


def _free() -> str:
    left = {name: amount for name, amount in ray.available_resources().items() if int(amount)}
    counts = Machine("", "", left).devices
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"
