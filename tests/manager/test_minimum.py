"""A minimum that the cluster can't meet for the moment. Real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.manager.managed import Service

pytestmark = pytest.mark.timeout(400)  # a busy machine decides nothing


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path / "cluster", "--devices", "2")
    made.up()
    yield made
    made.close()


def test_a_drained_device_holds_up_only_those_who_need_it(service: Service) -> None:
    drained = service.client.get("/api/devices")[0]["name"]
    service.client.post(f"/api/devices/{drained}/drain")
    greedy = service.submit(demand=2, min=2, virtual_nodes=4)
    modest = service.submit(virtual_nodes=4)
    assert "has 1 device now, and it needs at least 2" in greedy.view()["reason"]
    assert modest.until_over()["state"] == "DONE"
    assert greedy.view()["state"] == "QUEUED"
    service.client.post(f"/api/devices/{drained}/return")
    assert greedy.until_over()["state"] == "DONE"
