"""Jobs that bring their own emulated devices to a manager."""

from __future__ import annotations

from pathlib import Path

import pytest

from virtualflow.cluster.policies import registry
from virtualflow.core.devices import parse_pools
from virtualflow.core.emulation import Emulated
from virtualflow.core.job_description import JobDescription
from virtualflow.errors import ManagerError
from virtualflow.manager.description import Cluster
from virtualflow.manager.manager import Manager
from virtualflow.manager.records import Records
from virtualflow.manager.submission import Submission
from virtualflow.train.pace import EmulatedPace

CLUSTERS = Emulated(points=((8, 0.1),))
OWN = Emulated(points=((8, 0.4),), update_seconds=0.01, communication=((2, 0.02), (4, 0.04)))


def submission(**facts: object) -> Submission:
    return Submission(JobDescription("train.py", **facts), {"train.py": "print()"})  # type: ignore[arg-type]


@pytest.fixture
def manager(vf_home: Path) -> Manager:
    vf_home.mkdir()
    cluster = Cluster(parse_pools("V100:2"), {name: CLUSTERS.to_json() for name in ("V100:0", "V100:1")})
    return Manager(cluster, registry.make("wfs"), Records(vf_home / "jobs.sqlite"))


def test_a_job_has_its_own_emulation_and_others_the_clusters(manager: Manager) -> None:
    own = manager.submit(submission(emulated={"V100": OWN.to_json()}))
    other = manager.submit(submission())
    for job_id, expected in ((own, OWN), (other, CLUSTERS)):
        emulated = manager.fleet.folder(job_id).spec().description.emulated
        assert {name: Emulated.from_json(facts) for name, facts in emulated.items()} == {
            "V100:0": expected,
            "V100:1": expected,
        }


@pytest.mark.parametrize("facts", [{"pace": 3}, {"points": [[8, "soon"]]}, {"communication": 4}])
def test_an_emulation_that_is_none_is_refused(manager: Manager, facts: dict[str, object]) -> None:
    with pytest.raises(ManagerError, match="V100 can't be emulated like that"):
        manager.submit(submission(emulated={"V100": facts}))
    assert not manager.records.all()


def test_communication_is_waited_for_by_the_number_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert OWN.step_seconds(1) == pytest.approx(0.01)
    assert OWN.step_seconds(3) == pytest.approx(0.04)
    slept: list[float] = []
    monkeypatch.setattr("virtualflow.train.pace.time.sleep", slept.append)
    monkeypatch.setattr("virtualflow.train.pace.time.perf_counter", lambda: 7.0)  # a busy machine takes some of it
    pace = EmulatedPace(OWN)
    pace.begin()
    pace.end_update(4)
    assert slept == [pytest.approx(0.05)]
