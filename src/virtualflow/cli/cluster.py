"""``vf cluster up`` and ``down``: the manager as a service."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from virtualflow import __version__
from virtualflow.backends.machines import Names
from virtualflow.cli.dashboard import link_to, needed
from virtualflow.cli.options import (
    DeviceFile,
    DeviceType,
    Emulate,
    TimeScale,
    device_type_of,
    devices_in,
    pools_of,
)
from virtualflow.cli.records import orphans, restore
from virtualflow.cluster.policies import registry
from virtualflow.cluster.policies.base import Options, Policy
from virtualflow.core.devices import Pool
from virtualflow.core.emulation import Devices
from virtualflow.errors import ConfigError, LaunchError, ManagerError
from virtualflow.job import tokens
from virtualflow.job.listener import listen as bound
from virtualflow.manager.client import RECORDS, Client, folder, only_manager
from virtualflow.manager.description import Cluster
from virtualflow.manager.manager import Manager, tell
from virtualflow.manager.records import Ledger
from virtualflow.system import private_files, tls

TICK_SECONDS = 0.2
RAY_SECONDS = 1.0  # between two looks at a Ray cluster's machines
UP_SECONDS = 60.0
DOWN_SECONDS = 300.0
LOG = "manager.log"
MOST_LOG_BYTES = 16 << 20  # then a new one is begun, and the old one kept

cluster = typer.Typer(no_args_is_help=True, help="Run a manager, which shares devices among many jobs.")
cluster.command()(orphans)
cluster.command()(restore)


@cluster.command()
def up(
    devices: Annotated[
        str | None,
        typer.Option(
            help="The devices to share, such as 4, cpu:4, or V100:2,P100:4+4. This machine's cores by default; "
            "with --backend ray, those of that cluster.",
            metavar="LIST",
        ),
    ] = None,
    policy: Annotated[str, typer.Option(help="The scheduling policy: wfs, priority, fifo, srtf, las, ...")] = "wfs",
    backend: Annotated[str, typer.Option(help="Where workers run: local, or ray.")] = "local",
    listen: Annotated[
        str, typer.Option(help="The address to listen on; encrypted, unless it is loopback.", metavar="HOST:PORT")
    ] = "127.0.0.1:0",
    device_file: DeviceFile = None,
    emulate: Emulate = None,
    time_scale: TimeScale = None,
    round: Annotated[str, typer.Option(help="wfs: any number of devices, or pow2.")] = "any",
    backfill: Annotated[
        bool, typer.Option("--backfill", help="priority, fifo: small jobs may overtake a blocked one.")
    ] = False,
    device_type: DeviceType = "auto",
    patience: Annotated[
        float, typer.Option(help="Seconds after which a worker that blocks the others counts as lost.", min=1.0)
    ] = 30.0,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Run in the foreground, as a service manager expects.")
    ] = False,
) -> None:
    """Start a manager, and print the address of its dashboard.

    It continues in the background until `vf cluster down`. Jobs of an earlier manager are taken over.
    """
    made = registry.make(policy, Options(round=round, backfill=backfill))
    host, port = tokens.parse_address(listen)
    if backend not in ("local", "ray"):
        raise ConfigError(f"--backend {backend}: expected local or ray")
    if backend == "ray" and devices is not None:
        raise ConfigError("--devices: with --backend ray, the Ray cluster says what there is")
    private_files.make_folder(folder())
    if foreground:
        emulation = Emulation(device_file, emulate, time_scale)
        with _on_ray(emulation) if backend == "ray" else _here(devices, emulation) as (there, look):
            told = replace(there, patience_seconds=patience, device_type=device_type_of(device_type))
            _serve(told, made, host, port, look)
        return
    with only_manager():
        pass  # a clear word now rather than in a log
    (folder() / "address").unlink(missing_ok=True)
    command = [sys.executable, "-m", "virtualflow.cli.main", *sys.argv[1:], "--foreground"]
    log, began = _log()
    with log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    deadline = time.monotonic() + UP_SECONDS
    while not (folder() / "address").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise LaunchError(f"the manager did not start:\n{_said_since(began)}")
        time.sleep(0.05)
    client = Client.find()
    print(f"manager at {client.address}")
    if client.address.startswith("https"):
        print(f"its certificate is its own, {client.fingerprint}: a browser asks you about it once")
    print(f"dashboard: {link_to(client)} (works once; `vf dashboard` makes another)", flush=True)


def _log() -> tuple[BinaryIO, int]:
    """The manager's log, to be written on, and where that begins: what earlier ones have said stays."""
    path = folder() / LOG
    if path.exists() and path.stat().st_size > MOST_LOG_BYTES:
        path.replace(path.with_name(f"{LOG}.1"))
    log = path.open("ab")
    return log, log.tell()


def _said_since(began: int) -> str:
    with (folder() / LOG).open("rb") as log:
        log.seek(began)
        said = log.read().decode(errors="replace")[-2000:].strip()
    return said or f"it has said nothing: perhaps {folder()} is full. `vf cluster up --foreground` shows more"


@cluster.command()
def down(
    keep_jobs: Annotated[bool, typer.Option("--keep-jobs", help="Leave jobs running for the next manager.")] = False,
) -> None:
    """End the manager. Jobs stop with a checkpoint and continue at the next `vf cluster up`."""
    client = Client.find()
    client.post("/api/cluster/down", keep_jobs=keep_jobs)
    deadline = time.monotonic() + DOWN_SECONDS
    while _runs():
        if time.monotonic() > deadline:
            raise ManagerError(f"the manager has not ended within {DOWN_SECONDS:.0f} s; see {folder() / LOG}")
        time.sleep(0.05)
    print("the manager has ended" + ("; its jobs go on" if keep_jobs else ""))


def _runs() -> bool:
    """Whether there is a manager in this ``$VF_HOME``, though it may be about to end."""
    try:
        with only_manager():
            return False
    except ManagerError:
        return True


Look = Callable[[Manager], None]  # for machines that have come or gone


@dataclass(frozen=True, slots=True)
class Emulation:
    """How devices stand for others, as options say it."""

    file: Path | None
    workload: str | None
    time_scale: float | None

    def of(self, pools: Sequence[Pool]) -> Devices:
        return devices_in(pools, self.file, self.workload, self.time_scale)


@contextmanager
def _here(devices: str | None, emulation: Emulation) -> Iterator[tuple[Cluster, Look]]:
    """This machine's devices."""
    there = emulation.of(pools_of(devices or str(os.cpu_count() or 1)))
    yield Cluster(there.pools, there.emulated), lambda _: None


@contextmanager
def _on_ray(emulation: Emulation) -> Iterator[tuple[Cluster, Look]]:
    """A Ray cluster's devices, whose machines come and go."""
    from virtualflow.backends import ray  # says so if it is not installed

    names, looked = Names(), time.monotonic()

    def machines() -> dict[str, str]:
        return {name: machine.id for name, machine in names.devices.items()}

    def look(manager: Manager) -> None:
        nonlocal looked
        if time.monotonic() > looked + RAY_SECONDS:
            looked = time.monotonic()
            if news := names.see(ray.machines(), time.time()):
                manager.hear(news, machines())

    with ray.connected():
        names.see(ray.machines(), time.time())
        there = emulation.of(names.pools)
        known = {name: value for name, value in os.environ.items() if name.startswith("RAY_A")}  # address, token
        yield Cluster(there.pools, there.emulated, "ray", machines=machines(), environment=known), look


def _serve(told: Cluster, policy: Policy, host: str, port: int, look: Look) -> None:
    with needed():
        from virtualflow.manager.api.serving import serving
        from virtualflow.manager.api.views import ClusterSource
    with only_manager(), bound(host, port) as listening:
        token = tokens.read_token(folder() / "token", create=True).secret
        manager = Manager(told, policy, Ledger(folder() / RECORDS))
        tell(f"a manager of version {__version__} has started, with {manager.devices} device(s), process {os.getpid()}")
        over = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):  # its jobs go on, for the next manager
            signal.signal(number, lambda *_: over.set())
        identity = None if tls.is_loopback(host) else tls.identity()
        scheme = "http" if identity is None else "https"
        source = ClusterSource(manager)
        with serving(source, token, listening, lambda keep: _end(manager, over, keep=keep), identity=identity):
            partial = folder() / ".address.partial"
            partial.write_text(f"{scheme}://{host}:{listening.getsockname()[1]}\n")
            partial.replace(folder() / "address")  # whoever finds it can read it
            try:
                _manage(manager, over, look)
            finally:
                (folder() / "address").unlink(missing_ok=True)


def _manage(manager: Manager, over: threading.Event, look: Look) -> None:
    """The manager's own loop, until it is told to end; what goes wrong in one turn is told, and tried again."""
    while not over.wait(TICK_SECONDS) and not manager.has_stopped:
        try:
            look(manager)
            manager.tick()
        except Exception:
            tell(traceback.format_exc())


def _end(manager: Manager, over: threading.Event, *, keep: bool) -> None:
    if keep:
        over.set()
    else:
        manager.stop_jobs()
