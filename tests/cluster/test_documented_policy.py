"""The policy in docs/how-to/write-a-policy.md runs as it stands there."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from virtualflow.cluster.job import Job
from virtualflow.cluster.messages import JobArrived, ReallocateJob, StartJob
from virtualflow.cluster.policies import registry
from virtualflow.cluster.scheduler import Scheduler
from virtualflow.cluster.throughput.model import Profiled
from virtualflow.core.devices import parse_pools

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "write-a-policy.md"


@pytest.fixture
def plugged_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert code is not None
    assert len(code[1].splitlines()) <= 30
    (tmp_path / "even.py").write_text(code[1])
    monkeypatch.syspath_prepend(str(tmp_path))
    result = EntryPoints([EntryPoint("even", "even:Even", registry.GROUP)])
    monkeypatch.setattr(registry, "entry_points", lambda group: result)


@pytest.mark.usefixtures("plugged_in")
def test_it_is_found_by_name_and_shares_evenly() -> None:
    assert "even" in registry.names()
    brain = Scheduler(parse_pools("V100:4"), registry.make("even"), Profiled())
    assert brain.handle(JobArrived(0.0, Job("A", 0.0, 4, 10.0))) == [
        StartJob("A", ("V100:0", "V100:1", "V100:2", "V100:3"))
    ]
    assert brain.handle(JobArrived(1.0, Job("B", 1.0, 4, 10.0))) == [
        ReallocateJob("A", ("V100:0", "V100:1")),
        StartJob("B", ("V100:2", "V100:3")),
    ]
