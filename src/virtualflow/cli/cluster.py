"""``vf cluster up`` and ``down``: the manager as a service."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from socket import gethostname
from typing import Annotated
from urllib.parse import urlsplit

import typer

from virtualflow.cli.audit import audit
from virtualflow.cli.dashboard import link_to, needed
from virtualflow.cli.help import Command
from virtualflow.cli.memory import OfDevices
from virtualflow.cli.memory import device_memory as memory_of
from virtualflow.cli.options import (
    UNENCRYPTED,
    DeviceFile,
    DeviceType,
    Emulate,
    RoundSeconds,
    TimeScale,
    TlsCert,
    TlsKey,
    Useful,
    device_type_of,
    devices_in,
    pools_of,
)
from virtualflow.cli.orphans import orphans, restore
from virtualflow.cli.screen import print_line
from virtualflow.cli.tokens import token
from virtualflow.cli.users import users_in
from virtualflow.cluster.policies import registry
from virtualflow.cluster.policies.base import Options
from virtualflow.core.devices import Pool
from virtualflow.core.emulation import Devices
from virtualflow.errors import ConfigError
from virtualflow.job import tokens
from virtualflow.manager import service
from virtualflow.manager.client import Client, folder
from virtualflow.system import identity, private_files, tls

cluster = typer.Typer(no_args_is_help=True, help="Run a manager, which shares devices among many jobs.")
cluster.add_typer(token, name="token")
cluster.command(cls=Command)(audit)
cluster.command(cls=Command)(orphans)
cluster.command(cls=Command)(restore)


@cluster.command(cls=Command)
def up(
    devices: Annotated[
        str | None,
        typer.Option(
            help="The devices to share, such as 4, cpu:4, or V100:2,P100:4+4. This machine's cores by default; "
            "with --backend ray, those of that cluster.",
            metavar="LIST",
        ),
    ] = None,
    policy: Annotated[
        str, typer.Option(help="The scheduling policy: wfs, priority, fifo, srtf, las, ...", metavar="NAME")
    ] = "wfs",
    backend: Annotated[
        str, typer.Option(help="Where workers run: this machine, or a Ray cluster.", metavar="local|ray")
    ] = "local",
    listen: Annotated[
        str | None,
        typer.Option(
            help=f"The address to listen on, 127.0.0.1:{service.PORT} by default. Requests are encrypted, on "
            "loopback with --tls; with --backend ray, what workers send each other (gloo, NCCL) is not: use a private "
            "network, or WireGuard.",
            metavar="HOST:PORT",
        ),
    ] = None,
    encrypt: Annotated[
        bool, typer.Option("--tls", help="Encrypt on loopback, too; clients know the manager by its certificate.")
    ] = False,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    device_file: DeviceFile = None,
    device_memory: OfDevices = None,
    emulate: Emulate = None,
    time_scale: TimeScale = None,
    round: Annotated[
        str, typer.Option(help="wfs: any number of devices, or powers of two.", metavar="any|pow2")
    ] = "any",
    useful: Useful = False,
    round_seconds: RoundSeconds = 360.0,
    backfill: Annotated[
        bool, typer.Option("--backfill", help="priority, fifo: small jobs may overtake a blocked one.")
    ] = False,
    users: Annotated[
        Path | None,
        typer.Option(
            help="A TOML file with the weights and caps of users and groups. Default: users.toml in the cluster's "
            "folder, if there is one.",
            metavar="FILE",
        ),
    ] = None,
    device_type: DeviceType = "auto",
    patience: Annotated[
        float,
        typer.Option(
            help="Seconds after which a worker that blocks the others counts as lost.", min=1.0, metavar="SECONDS"
        ),
    ] = 30.0,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Run in the foreground, as a service manager expects.")
    ] = False,
) -> None:
    """Start a manager, and print the address of its dashboard.

    It continues in the background until `vf cluster down`. Jobs of an earlier manager are taken over.
    """
    scheduling = registry.make_live(
        policy, Options(round=round, useful=useful, round_seconds=round_seconds, backfill=backfill)
    )
    host, port = tokens.parse_address(listen) if listen is not None else ("127.0.0.1", None)
    is_open = not tls.is_loopback(host)
    own = identity.chosen(tls_cert, tls_key) if is_open or encrypt or tls_cert or tls_key else None
    if backend == "ray" and is_open:
        print_line(UNENCRYPTED, sys.stderr)
    if backend not in ("local", "ray"):
        raise ConfigError(f"--backend {backend}: expected local or ray")
    if backend == "ray" and devices is not None:
        raise ConfigError("--devices: with --backend ray, the devices are the Ray cluster's")
    private_files.make_folder(folder())
    sharing = users_in(users, scheduling)
    if foreground:
        logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%Y-%m-%d %H:%M:%S")
        logging.getLogger("virtualflow").setLevel(logging.INFO)

        def emulation(pools: Sequence[Pool]) -> Devices:
            return devices_in(pools, device_file, emulate, time_scale)

        local = pools_of(devices or str(os.cpu_count() or 1)) if backend == "local" else ()
        with (
            needed(),
            service.local_devices(local, emulation) if local else service.ray_devices(emulation) as (hardware, look),
        ):
            memory = memory_of(device_memory, device_file, [pool.device_type for pool in hardware.pools])
            chosen_type = device_type_of(device_type, devices)
            chosen = replace(hardware, patience_seconds=patience, device_type=chosen_type, memory=memory, users=sharing)
            service.serve(chosen, scheduling, host, port, look, own)
        return
    client = service.start([sys.executable, "-m", "virtualflow.cli.main", *sys.argv[1:], "--foreground"])
    print(f"manager at {client.address}")
    if own is not None:
        whose = f"{own.certificate}" if own.is_given else "its own: a browser asks you about it once"
        print(f"certificate: {client.fingerprint}, {whose}")
    print(f"dashboard: {link_to(client)} (works once; `vf dashboard` makes another)")
    port = urlsplit(client.address).port
    if not is_open:
        here = f"{os.environ.get('USER', 'USER')}@{gethostname()}"
        print(f"from another machine, first: ssh -L {port}:127.0.0.1:{port} {here}")
    if listen is None and port != service.PORT:
        print(f"port {service.PORT} is in use by something else, so another one was taken")
    sys.stdout.flush()


@cluster.command(cls=Command)
def down(
    keep_jobs: Annotated[bool, typer.Option("--keep-jobs", help="Leave jobs running for the next manager.")] = False,
) -> None:
    """End the manager. Jobs stop with a checkpoint and continue at the next `vf cluster up`."""
    service.end(Client.find(), keep_jobs=keep_jobs)
    print("the manager has ended" + ("; its jobs keep running" if keep_jobs else ""))
