"""The membership of a process: the one that a launcher gave it, or that of a plain script, which is alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from virtualflow.core.mapping import DeviceId, Mapping, spread
from virtualflow.core.membership import Change, Handover, JobContext, Membership
from virtualflow.core.verdicts import SentinelVerdict
from virtualflow.system.home import home, new_job_id


class Solo:
    """A plain script or a notebook: one device, in this process, for ever."""

    device: DeviceId = "0"
    devices: tuple[DeviceId, ...] = ("0",)
    coming = devices
    group = None
    generation = seen = 0
    change_is_due = joining = must_stop = orphaned = False
    changes: list[Change] = []  # noqa: RUF012  (nothing ever changes)

    def __init__(self) -> None:
        job_id = new_job_id()
        self.job = JobContext(job_id, home() / "jobs" / job_id)
        self.peers: Any = None
        self.stage_sizes: tuple[tuple[int, int], ...] = ()
        self._training = 0

    def mapping(self, virtual_nodes: int) -> Mapping:
        return spread(virtual_nodes, self.devices)

    def new_trainer(self, number: int, node_sizes: Sequence[int], parameters: int) -> None:
        if number == 1 and _register is not None:
            _register(self.job, len(node_sizes))

    def report_pace(self, step: int, seconds: float, overran: int) -> None:
        pass

    def begin_training(self) -> bool:
        self._training += 1
        return self._training == 1

    def all_have_seen(self, generation: int) -> None:
        pass

    def leave_early(self) -> None:
        pass

    def change(self, send_state: Handover) -> None:
        raise NotImplementedError("nobody joins or leaves a plain script")

    def exchange(self) -> None:
        pass

    def shrink(self, count: int) -> None:
        raise NotImplementedError("nobody can leave a plain script")

    def report_verdict(self, step: int, verdict: SentinelVerdict) -> None:
        raise NotImplementedError("a plain script has one device, and a sentinel compares two")

    def stop(self) -> NoReturn:
        raise NotImplementedError("nobody stops a plain script this way")

    def recover(self) -> None:
        raise NotImplementedError("a plain script has no peers to lose")

    def join(self, receive_state: Handover) -> None:
        raise NotImplementedError("a plain script is there from the start")

    def record(self, result: Any) -> None:
        pass

    def recorded(self) -> Any:
        raise NotImplementedError("a plain script has no past")


_installed: Membership | None = None
_solo: Solo | None = None
_register: Callable[[JobContext, int], None] | None = None


def register_with(register: Callable[[JobContext, int], None]) -> None:
    """Call *register* with a plain script's job, and its number of virtual nodes, when its first Trainer is made."""
    global _register
    _register = register


def install(membership: Membership | None) -> None:
    """Make *membership* the one that Trainers of this process get; the worker's entry point calls this."""
    global _installed
    _installed = membership


def start_over(alone: Solo | None = None) -> None:
    """Make the next Trainer of this plain script the first of a job of its own, or of *alone*."""
    global _solo
    _solo = alone


def installed() -> Membership | None:
    """The membership that a launcher gave this process, if there was one."""
    return _installed


def current() -> Membership:
    """The installed membership, or that of a plain script: one job for the whole process."""
    global _solo
    if _installed is None and _solo is None:
        _solo = Solo()
    membership = _installed or _solo
    assert membership is not None
    return membership


def leads() -> bool:
    """Whether this process is its job's lead worker, or a plain script; for what has no Trainer to ask."""
    if _installed is None:
        return True
    return not _installed.joining and _installed.devices[0] == _installed.device


def device_type() -> str:
    """Where this process computes: on what its job says, or, in a plain script, on the processor."""
    return "cpu" if _installed is None else _installed.job.device_type
