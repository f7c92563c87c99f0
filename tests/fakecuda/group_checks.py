"""Groups of workers with accelerators. Runs in a process that has the CUDA device for tests: see ``test_fakecuda``."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.fakecuda import install as fake
from tests.job.test_rendezvous import LOOPBACK, connected
from virtualflow.errors import PeerLostError
from virtualflow.job import device_collectives
from virtualflow.job.device_collectives import DeviceCollectives
from virtualflow.job.rendezvous import TorchGroup


def together(types: list[str], work: Callable[[TorchGroup, int], Any], patience_seconds: float = 60.0) -> list[Any]:
    """What *work* gives in each of a group's workers, which are threads; their devices have these *types*."""
    posts = connected(len(types))
    groups = [TorchGroup("generation/1", rank, len(types), kind) for rank, kind in enumerate(types)]

    def one(rank: int) -> Any:
        groups[rank].form(posts[rank], LOOPBACK, patience_seconds)
        with groups[rank]:
            return work(groups[rank], rank)

    with ThreadPoolExecutor(len(types)) as pool:
        return list(pool.map(one, range(len(types))))


@pytest.mark.parametrize("types", [["cuda", "cuda"], ["cuda", "cpu"], ["cpu", "cuda"]])
def test_tensors_of_any_device_are_reduced_whatever_the_others_have(types: list[str]) -> None:
    def reduce(group: TorchGroup, rank: int) -> list[Any]:
        mine = torch.arange(4.0, device=types[rank]) * (rank + 1)
        summed, largest, sent, strided = mine.clone(), mine.clone(), mine.clone(), mine.repeat(2, 1).T.clone()
        gathered = [torch.empty_like(mine) for _ in types]
        for work in (
            group.sum(summed),
            group.max(largest),
            group.broadcast(sent, 1),
            group.gather(mine, gathered),
            group.sum(strided.T),
        ):
            work.wait()
        group.settle()
        group.max(torch.zeros(1)).wait()
        assert {tensor.device.type for tensor in (summed, largest, sent, *gathered)} == {types[rank]}
        return [each.tolist() for each in (summed, largest, sent, strided[:, 0], *gathered)]

    one, two = [0.0, 1.0, 2.0, 3.0], [0.0, 2.0, 4.0, 6.0]
    assert together(types, reduce) == [[[0.0, 3.0, 6.0, 9.0], two, two, [0.0, 3.0, 6.0, 9.0], one, two]] * 2


def busy_for(seconds: float) -> None:
    """Give the device so much to do."""
    fake.pace(kernel_microseconds=seconds * 1e6)
    torch.ones(1, device="cuda")
    fake.pace()


def test_who_waits_for_the_device_is_freed_when_a_peer_leaves_the_group() -> None:
    """A peer whose patience ends first: on CPUs its sockets free the others, and so they do here."""
    left = threading.Event()

    def wait(group: TorchGroup, rank: int) -> str:
        if rank == 0:
            group.break_off()
            left.set()
            return "left"
        assert left.wait(60)
        busy_for(2.0)
        with pytest.raises(PeerLostError):
            group.settle()
        fake.catch_up()
        return "freed"

    assert together(["cuda", "cuda"], wait) == ["left", "freed"]


class Library:
    """What aborts in no time, or never."""

    Options = SimpleNamespace

    def __init__(self) -> None:
        self.aborted = threading.Event()
        self.blocks = threading.Event()

    def __call__(self, *_: Any) -> Library:
        return self

    def abort(self) -> None:
        self.aborted.set()
        self.blocks.wait(60)


def test_a_wait_for_the_device_ends_with_patience_with_an_abort_and_when_all_is_done() -> None:
    devices, _ = collectives(patience_seconds=0.2)
    busy_for(1.0)
    assert not devices.is_idle(lambda: False)  # late
    fake.catch_up()
    assert devices.is_idle(lambda: False)
    devices, library = collectives(patience_seconds=600.0)
    busy_for(1.0)
    assert not devices.is_idle(lambda: True)
    devices.abort()  # returns at once, though the library's own call does not
    assert devices.is_aborted
    assert library.aborted.wait(60)
    assert not devices.is_idle(lambda: False)
    devices.leave()  # waits until nothing can touch a buffer
    assert torch.cuda.current_stream().query()
    library.blocks.set()


def test_a_device_that_stays_busy_after_an_abort_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(device_collectives, "ABORT_SECONDS", 0.1)
    monkeypatch.setattr(device_collectives.os, "kill", lambda _, number: ended.append(number))
    devices, library = collectives(patience_seconds=600.0)
    busy_for(1.0)
    library.blocks.set()
    devices.leave()
    assert ended == [signal.SIGKILL]
    fake.catch_up()


def collectives(patience_seconds: float) -> tuple[DeviceCollectives, Library]:
    """Those of a worker that is alone, with a library that does as it is told."""
    library = Library()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "ProcessGroupNCCL", library)
        return DeviceCollectives("cuda", dist.HashStore(), 0, 1, patience_seconds), library
