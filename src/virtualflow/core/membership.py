"""Who takes part in a job, as the training code sees it: a protocol, and the answer for a plain script.

``train`` asks a membership for its mapping and its group, and never knows who answers: ``Solo`` under
``python script.py``, the launcher's client under ``vf run``.
"""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from virtualflow.core.mapping import DeviceId, Mapping, spread


class Work(Protocol):
    """A collective under way."""

    def wait(self) -> None: ...


class Group(Protocol):
    """The workers of one generation, joined by a collective library. Tensors are torch's."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def sum(self, tensor: Any) -> Work: ...
    def max(self, tensor: Any) -> Work: ...
    def gather(self, tensor: Any, into: list[Any]) -> Work: ...
    def broadcast(self, tensor: Any) -> Work: ...


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker knows of the job it belongs to."""

    id: str
    folder: Path
    audit: bool = False
    threads_per_device: int = 1
    device_type: str = "cpu"


class Membership(Protocol):
    """The job, this worker's device, and who else takes part."""

    @property
    def job(self) -> Job: ...
    @property
    def device(self) -> DeviceId: ...
    @property
    def devices(self) -> tuple[DeviceId, ...]: ...
    @property
    def group(self) -> Group | None: ...
    def mapping(self, virtual_nodes: int) -> Mapping: ...


class Solo:
    """A plain script or a notebook: one device, in this process."""

    device: DeviceId = "0"
    devices: tuple[DeviceId, ...] = ("0",)
    group = None

    def __init__(self) -> None:
        job_id = new_job_id()
        self.job = Job(job_id, home() / "jobs" / job_id)

    def mapping(self, virtual_nodes: int) -> Mapping:
        return spread(virtual_nodes, self.devices)


def home() -> Path:
    """Where jobs leave what they write: ``$VF_HOME``, else a folder in the home directory."""
    given = os.environ.get("VF_HOME")
    return Path(given) if given else Path.home() / ".virtualflow"


def new_job_id() -> str:
    """An id that sorts by time and is easy to type."""
    return time.strftime("%m%d-%H%M%S-") + secrets.token_hex(2)


_installed: Membership | None = None


def install(membership: Membership | None) -> None:
    """Make *membership* the one that Trainers of this process get; the worker's entry point calls this."""
    global _installed
    _installed = membership


def installed() -> Membership | None:
    """The membership that a launcher gave this process, if there was one."""
    return _installed


def current() -> Membership:
    """The installed membership, or a new ``Solo``."""
    return _installed or Solo()
