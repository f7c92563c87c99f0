"""Mixed allocations under a real manager: emulated devices of two types, real jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.manager.managed import STEPS, Service, until
from virtualflow.core.emulation import Emulated
from virtualflow.events import STREAM, Regrouped, read_events

pytestmark = pytest.mark.timeout(400)  # a busy machine decides nothing
WAVE_SECONDS = {"P100": 0.002, "K80": 0.003}  # of a virtual node of any size: both together are faster than either


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    options = ("--devices", "P100:1,K80:1", "--policy", "las-mixed", "--round-seconds", "2")
    made = Service(tmp_path / "cluster", *options)
    made.up()
    yield made
    made.close()


def emulated() -> dict[str, Any]:
    return {name: Emulated(points=((1, seconds),)).to_json() for name, seconds in WAVE_SECONDS.items()}


def test_a_job_has_the_idle_devices_of_another_type_until_somebody_wants_them(service: Service) -> None:
    first = service.submit(slow=True, demand=2, virtual_nodes=4, emulated=emulated())
    first.until_on(2)
    second = service.submit(slow=True, demand=1, virtual_nodes=4, emulated=emulated())
    first.until_on(1)
    until(lambda: second.view()["devices"])
    second.ask("cancel")
    first.until_on(2)  # and has them again
    first.let_go()
    assert first.until_over()["state"] == "DONE"
    assert first.steps == list(range(STEPS))
    changes = [event for event in read_events(first.folder.path / STREAM) if isinstance(event, Regrouped)]
    moves = [(len(change.joined), len(change.left)) for change in changes]
    assert [move for move in moves if move != (0, 0)][:2] == [(0, 1), (1, 0)]  # in between only virtual nodes moved
