"""The grid that a running job gets by its stage profile: on any number of devices, each of which runs something."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from virtualflow.core.cells import pipelines, with_copies
from virtualflow.core.profiled_grid import GridWanted
from virtualflow.core.stage_profile import Link, StagedProfile, StagedWorkload, StagePoint, UnitFigures
from virtualflow.solver.grid_costs import costs_at
from virtualflow.solver.grid_forecast import forecast
from virtualflow.solver.profiled_grids import ProfiledGrids

SECONDS = (1.0, 1.0, 1.0, 5.0)  # the head is slow
WANTED = GridWanted(4, 100, 2, 6, 1, "1f1b")


def workload(memory: int | None = None) -> StagedWorkload:
    stages = tuple((StagePoint(2, seconds, 2 * seconds, 1, 0, 1),) for seconds in SECONDS)
    units = tuple(UnitFigures((stage,), 10, 20, 20, 0.0) for stage in range(4))
    profile = StagedProfile("cpu", stages, units, memory, {"parameters": 100})
    return StagedWorkload("a model", {"cpu": profile}, Link(0.01, math.inf))


@pytest.mark.parametrize("memory", [None, 130])  # the whole model takes 220
def test_on_any_number_of_devices_the_grid_is_faster_than_the_usual_one_and_leaves_nobody_idle(
    memory: int | None,
) -> None:
    grids, costs = ProfiledGrids(workload(memory)), costs_at(workload(memory), ["cpu"], 2)
    for count in range(1 if memory is None else 3, 7):
        devices = tuple(map(str, range(10, 10 + count)))
        best = grids.best(WANTED, devices)
        assert {owner for route in best.routes for owner in route} == set(devices)
        usual = with_copies(pipelines(4, 6, devices), 1)
        chosen = forecast(best, costs, "1f1b")
        assert chosen.fits
        assert chosen.step_seconds <= forecast(usual, costs, "1f1b").step_seconds * (1 if count == 1 else 0.95)


def test_what_devices_hold_now_counts_more_than_what_was_profiled() -> None:
    devices = ("0", "1", "2", "3")
    best = ProfiledGrids(workload()).best(replace(WANTED, device_bytes=70), devices)
    assert all(len(best.stages_of(device)) == 1 for device in devices)


def test_devices_of_several_types_get_what_they_are_good_for() -> None:
    fast, slow = workload().profile("cpu"), workload().profile("cpu")
    slower = tuple(
        tuple(replace(point, forward_seconds=4 * point.forward_seconds, backward_seconds=4 * point.backward_seconds)
              for point in points)
        for points in slow.stages
    )  # fmt: skip
    profiles = {"V100": replace(fast, device_type="V100"), "P100": replace(slow, device_type="P100", stages=slower)}
    grids = ProfiledGrids(StagedWorkload("a model", profiles, Link()))
    best = grids.best(WANTED, ("P100:3", "V100:7", "P100:5"))
    cells = {device: len(best.cells_of(device)) for device in best.devices}
    assert set(cells) == {"V100:7", "P100:3", "P100:5"}
    assert cells["V100:7"] > cells["P100:3"] + cells["P100:5"]


@pytest.mark.parametrize(
    ("wanted", "devices", "why"),
    [
        (WANTED, ("0",), None),
        (WANTED, ("V100:0",), "no stage profile of a model on device type V100"),
        (replace(WANTED, stages=3), ("0",), "made for 4 stages of 100 parameters, and this model has 3 of 100"),
        (replace(WANTED, parameters=7), ("0",), "this model has 4 of 7"),
    ],
)
def test_a_profile_of_another_model_or_type_is_of_no_use(
    wanted: GridWanted, devices: tuple[str, ...], why: str | None
) -> None:
    said = ProfiledGrids(workload()).why_not(wanted, devices)
    assert said == why or (why is not None and said is not None and why in said)
