"""The manager as a process of its own: its loop, its server, its devices, and how it is started and ended."""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO

from virtualflow import __version__
from virtualflow.backends.machines import DeviceNames
from virtualflow.cluster.policies.base import Policy
from virtualflow.core.devices import Pool
from virtualflow.core.emulation import Devices
from virtualflow.core.wording import counted
from virtualflow.errors import LaunchError, ManagerError
from virtualflow.job import tokens
from virtualflow.job.listener import listen
from virtualflow.manager.client import RECORDS, Client, folder, only_manager
from virtualflow.manager.description import Cluster
from virtualflow.manager.manager import Manager
from virtualflow.manager.records import Records
from virtualflow.manager.token_book import TOKENS, TokenBook
from virtualflow.system import identity
from virtualflow.system.identity import Identity

PORT = 8642  # where a manager answers, so that links and tunnels stay good
TICK_SECONDS = 0.2
RAY_SECONDS = 1.0  # between two looks at a Ray cluster's machines
UP_SECONDS = 60.0
DOWN_SECONDS = 300.0
LOG = "manager.log"
MAX_LOG_BYTES = 16 << 20  # then a new one is begun, and the old one kept

_log = logging.getLogger(__name__)

LookForMachines = Callable[[Manager], None]  # that have come or gone
EmulateDevices = Callable[[Sequence[Pool]], Devices]  # which devices of these pools stand for others


@contextmanager
def local_devices(pools: Sequence[Pool], emulate: EmulateDevices) -> Iterator[tuple[Cluster, LookForMachines]]:
    """This machine's devices."""
    devices = emulate(pools)
    yield Cluster(devices.pools, devices.emulated), lambda _: None


@contextmanager
def ray_devices(emulate: EmulateDevices) -> Iterator[tuple[Cluster, LookForMachines]]:
    """A Ray cluster's devices, whose machines come and go."""
    from virtualflow.backends import ray_connection  # raises LaunchError if it is not installed

    names, looked = DeviceNames(), time.monotonic()

    def machines() -> dict[str, str]:
        return {name: machine.id for name, machine in names.devices.items()}

    def look(manager: Manager) -> None:
        nonlocal looked
        if time.monotonic() > looked + RAY_SECONDS:
            looked = time.monotonic()
            if news := names.update(ray_connection.machines(), time.time()):
                manager.change_machines(news, machines())

    with ray_connection.connected():
        names.update(ray_connection.machines(), time.time())
        devices = emulate(names.pools)
        known = {name: value for name, value in os.environ.items() if name.startswith("RAY_A")}  # address, token
        yield Cluster(devices.pools, devices.emulated, "ray", machines=machines(), environment=known), look


def serve(
    cluster: Cluster, policy: Policy, host: str, port: int | None, look: LookForMachines, own: Identity | None = None
) -> None:
    """Run a manager in this process until it is asked to end. Without a *port*, at the usual one if that is free.

    *own*: by what its clients know it. Without that, its connections are not encrypted, and the host is loopback.
    """
    from virtualflow.manager.api.serving import serving  # needs libraries that jobs do not
    from virtualflow.manager.api.views import ClusterSource

    with only_manager(), _listening(host, port) as listening:
        token = tokens.made_token(folder() / "token", own or identity.identity()).secret
        book = TokenBook(token, folder() / TOKENS)
        manager = Manager(cluster, policy, Records(folder() / RECORDS))
        devices, pid = manager.devices, os.getpid()
        _log.info(
            "a manager of version %s has started, with %s, process %d", __version__, counted(devices, "device"), pid
        )
        over = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):  # its jobs go on, for the next manager
            signal.signal(number, lambda *_: over.set())

        def end(keep_jobs: bool) -> None:
            if keep_jobs:
                over.set()
            else:
                manager.stop_jobs()

        scheme = "http" if own is None else "https"
        source = ClusterSource(manager, book)
        with serving(source, book, listening, end, identity=own, folder=folder()):
            partial = folder() / ".address.partial"
            partial.write_text(f"{scheme}://{host}:{listening.getsockname()[1]}\n")
            partial.replace(folder() / "address")  # complete before a client can find it
            settle()
            try:
                _loop(manager, over, look)
            finally:
                manager.close()
                (folder() / "address").unlink(missing_ok=True)


def settle() -> None:
    """What is there by now stays: no tick has to wait until the garbage collector has gone through it."""
    gc.collect()
    gc.freeze()


def _listening(host: str, port: int | None) -> socket.socket:
    if port is not None:
        return listen(host, port)
    try:
        return listen(host, PORT)
    except LaunchError:  # another manager's, or anything else's
        return listen(host, 0)


def _loop(manager: Manager, over: threading.Event, look: LookForMachines) -> None:
    while not over.wait(TICK_SECONDS) and not manager.has_stopped:
        try:
            look(manager)
            manager.tick()
        except Exception:
            _log.exception("a turn of the manager has failed; the next one tries again")


def start(command: Sequence[str]) -> Client:
    """Run *command*, which serves a manager, in the background; return when that answers."""
    with only_manager():
        pass  # a clear error now rather than in a log
    (folder() / "address").unlink(missing_ok=True)
    log, began = _open_log()
    with log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    deadline = time.monotonic() + UP_SECONDS
    while not (folder() / "address").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise LaunchError(f"the manager did not start:\n{_logged_since(began)}")
        time.sleep(0.05)
    return Client.in_folder(folder())


def end(client: Client, *, keep_jobs: bool) -> None:
    """End the manager of this ``$VF_HOME``; return when it is gone."""
    client.post("/api/cluster/down", keep_jobs=keep_jobs)
    deadline = time.monotonic() + DOWN_SECONDS
    while _runs():
        if time.monotonic() > deadline:
            raise ManagerError(f"the manager has not ended within {DOWN_SECONDS:.0f} s; see {folder() / LOG}")
        time.sleep(0.05)


def _runs() -> bool:
    """Whether there is a manager in this ``$VF_HOME``, though it may be about to end."""
    try:
        with only_manager():
            return False
    except ManagerError:
        return True


def _open_log() -> tuple[BinaryIO, int]:
    """The manager's log, to be appended to, and where that begins."""
    path = folder() / LOG
    if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
        path.replace(path.with_name(f"{LOG}.1"))
    log = path.open("ab")
    return log, log.tell()


def _logged_since(began: int) -> str:
    with (folder() / LOG).open("rb") as log:
        log.seek(began)
        text = log.read().decode(errors="replace")[-2000:].strip()
    return text or f"its log is empty: perhaps {folder()} is full. `vf cluster up --foreground` shows more"
