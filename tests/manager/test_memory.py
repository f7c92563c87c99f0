"""Jobs that state the memory they need, under a manager that knows what its devices have. Real processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.manager.managed import Service
from virtualflow.core import stage_profile
from virtualflow.core.cells import pipelines
from virtualflow.core.profiled_grid import GridWanted
from virtualflow.core.stage_profile import StagedProfile, StagedWorkload, StagePoint, UnitFigures
from virtualflow.errors import ManagerError
from virtualflow.solver.profiled_grids import ProfiledGrids

pytestmark = pytest.mark.timeout(500)  # a busy machine decides nothing

STAGED = Path(__file__).with_name("staged_job.py")
GB = 1 << 30
FOUR = {"stages": [4 * GB] * 4, "copies": 2}  # 12 GB on each of three devices, all 16 on each of two


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path / "cluster", "--devices", "3", "--device-memory", "12GB")
    made.up()
    yield made
    made.close()


def test_a_job_that_fits_no_single_device_gets_a_shape_that_holds_it_or_waits(service: Service) -> None:
    assert [device["memory"] for device in service.client.get("/api/devices")] == [12 * GB] * 3
    huge = service.submit(STAGED, memory={"stages": [20 * GB]})
    assert huge.view()["reason"] == "it needs devices of at least 20 GB, and the largest here has 12 GB"

    large = service.submit(STAGED, slow=True, memory=FOUR)  # and a demand of one device
    view = large.until(lambda view: bool(view["cells"]))
    assert view["memory"] == {**FOUR, "node": 0}
    assert (view["state"], len(view["devices"]), view["min"], view["want"]) == ("RUNNING", 3, 3, 3)
    one, two, three = view["devices"]
    assert view["cells"] == [[one] * 4, [one] * 4, [two] * 4, [three] * 4]
    assert (view["stages"], view["mapping"]) == (4, {device: [0, 1, 2, 3] for device in view["devices"]})
    assert [worker["stages"] for worker in view["workers"]] == [[0, 1, 2], [0, 2, 3], [1, 3]]
    with pytest.raises(ManagerError, match="needs at least 3 devices here"):
        large.ask("resize", devices=2)

    service.client.post(f"/api/devices/{one}/drain")
    large.until(lambda view: view["state"] == "QUEUED")
    assert large.view()["reason"] == "it needs 3 devices of cpu for its memory, and 2 of them can be used now"
    small = service.submit(STAGED, memory={"stages": [GB] * 4, "copies": 2})
    assert small.until_over()["state"] == "DONE"  # on one device: nobody waits with the large one

    large.let_go()
    service.client.post(f"/api/devices/{one}/return")
    assert large.until_over()["state"] == "DONE"
    assert large.output.split()[-1] == small.output.split()[-1]
    assert huge.view()["state"] == "QUEUED"


def slow_head() -> StagedWorkload:
    """A profile in which the last stage takes five times as long as each of the others."""
    seconds = (0.1, 0.1, 0.1, 0.5)
    stages = tuple((StagePoint(2, each, 2 * each, 1, 0, 1),) for each in seconds)
    units = tuple(UnitFigures((stage,), 1, 1, 1, 0.0) for stage in range(4))
    return StagedWorkload("staged_job", {"cpu": StagedProfile("cpu", stages, units)})


def test_what_nobody_stated_is_measured_and_a_kept_profile_chooses_the_grid_after_each_resize(service: Service) -> None:
    kept = service.home / "profiles" / STAGED.stem
    kept.mkdir(parents=True)
    (kept / "cpu.json").write_text(json.dumps(stage_profile.to_json(slow_head())))
    job = service.submit(STAGED, slow=True, demand=3)
    for count in (3, 2):
        view = job.until(lambda view, count=count: len({name for row in view["cells"] or () for name in row}) == count)
        wanted = GridWanted(4, 0, 2, 4, 2, "1f1b", 12 * GB)
        devices = tuple(view["devices"])
        assert view["cells"] == ProfiledGrids(slow_head()).best(wanted, devices).rows
        assert view["cells"] != pipelines(4, 4, devices).rows
        job.ask("resize", devices=2)
    needs = job.until(lambda view: view["memory"] is not None)["memory"]
    assert (len(needs["stages"]), needs["copies"], needs["node"]) == (4, 2, 0)
    assert min(needs["stages"]) > 0
    job.let_go()
    assert job.until_over()["state"] == "DONE"


def test_a_statement_of_other_stages_is_refused_by_the_trainer(service: Service) -> None:
    job = service.submit(STAGED, memory={"stages": [GB] * 3, "copies": 2})
    assert "the memory of 3 stages and --copies 2, but this Trainer has 4 stages" in job.until_over()["failure"]
