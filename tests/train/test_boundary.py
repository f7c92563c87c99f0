"""The boundary between two steps, without a job around it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from virtualflow.core.mapping import Mapping
from virtualflow.core.membership import Change, JobContext
from virtualflow.core.sharding import GlobalBatch
from virtualflow.events import STREAM, StepDone, read_events
from virtualflow.train.boundary import Boundary
from virtualflow.train.journal import Journal
from virtualflow.train.peers import Peers
from virtualflow.train.position import Loop
from virtualflow.train.step import StepResult


class TwoWorkers:
    """A membership of devices 0 and 1, as device 1 sees it."""

    def __init__(self, folder: Path) -> None:
        self.job = JobContext("job", folder)
        self.device, self.devices = "1", ("0", "1")
        self.changes: list[Change] = []
        self.change_is_due = self.must_stop = self.orphaned = False

    def mapping(self, virtual_nodes: int) -> Mapping:
        return Mapping(tuple(self.devices[node % len(self.devices)] for node in range(virtual_nodes)))

    def lose(self, device: str) -> None:
        self.devices = tuple(other for other in self.devices if other != device)
        self.changes.append(Change(1, "loss", self.devices, (), (device,), {}))

    def change(self, _: object) -> None:
        """A new worker takes the place of device 0, and so the lead."""
        self.devices = ("0", "1")
        self.changes.append(Change(2, "resize", self.devices, ("0",), (), {}))


def test_a_lead_for_one_boundary_records_what_the_last_lead_could_not(tmp_path: Path) -> None:
    membership = TwoWorkers(tmp_path)
    peers = Peers(cast(Any, membership))
    journal = Journal(peers, 1, 2)
    loop = Loop()
    batch = cast(GlobalBatch, SimpleNamespace(epoch=0, step=0, examples=4))
    chain = journal.step_done(loop.position, batch, StepResult(0.5, 1.0, (1, 2), 1, None), 0.1)
    loop.complete_step(0, chain)
    membership.lose("0")  # after it has committed the step, and before it has recorded it
    membership.change_is_due = True
    live = cast(Any, SimpleNamespace(shards=None, stages=None))
    boundary = Boundary(live, loop, peers, cast(Any, None), cast(Any, None), journal)
    boundary.settle()
    assert membership.devices[0] == "0", "the test is about a worker that is the lead no more"
    events = list(read_events(tmp_path / STREAM))
    assert [event.step for event in events if isinstance(event, StepDone)] == [0]
