"""The connection to a Ray cluster: what it consists of, and actors on it. The one file that imports Ray."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from virtualflow.backends import machines as clusters
from virtualflow.backends.machines import Machine
from virtualflow.core.devices import Pool
from virtualflow.errors import LaunchError
from virtualflow.job.tokens import parse_address

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

__all__ = ["RayError", "RayTaskError", "actor", "connected", "devices", "end", "free", "machines", "ray"]

CONNECT_SECONDS = 5.0


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
    # Ray prints pages of its own logs when it loses a machine, into the script's output; no setting turns that off.
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


def actor(actor_class: type, machine_id: str | None, options: dict[str, Any], *arguments: Any) -> Any:
    """An actor, on a certain machine if one is given."""
    where = NodeAffinitySchedulingStrategy(machine_id, soft=False) if machine_id is not None else "DEFAULT"
    remote: Any = ray.remote
    return remote(**options)(actor_class).options(scheduling_strategy=where).remote(*arguments)


def end(actor: Any) -> None:
    """End an actor, whatever state it is in."""
    with contextlib.suppress(RayError, RuntimeError, ValueError):
        ray.kill(actor)


def free() -> str:
    """The devices that no actor has, in words."""
    left = {name: amount for name, amount in ray.available_resources().items() if int(amount)}
    counts = Machine("", "", left).devices
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"
