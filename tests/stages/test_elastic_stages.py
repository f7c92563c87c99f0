"""Devices come, go and die while a model that is cut trains: the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.chaos.harness import Chaos, Strike
from tests.conftest import Finished, Launcher
from tests.stages.test_same_bits_with_stages import EVERYTHING, GRIDS, JOB, MODELS, assert_same_bits, run
from virtualflow.backends.local import LocalBackend
from virtualflow.core.cells import given_cells, pipelines
from virtualflow.core.faults import STAGE_POINTS

IN_THE_STEP = (
    "forward",
    "backward",
    "bucket",
    "before the scalars",
    "after the scalars",
    "optimizer",
    "after the commit",
)
IN_INFERENCE = ("evaluate", "send activations", "receive activations")
CASE = {"epochs": 4, "copies": 2}
SHAPES = [(3, 1), (1, 4), (4, 2)]  # a pipeline of three, and so on


@pytest.fixture(scope="module")
def calm(run_on_cpus: Launcher) -> dict[str, Finished]:
    models = MODELS if EVERYTHING else ["gpt", "resnet"]
    return {model: run(run_on_cpus, model=model, **CASE) for model in models}


@pytest.fixture(scope="module")
def loaded() -> Iterator[LocalBackend]:
    """One that has imported what each worker with a Llama needs."""
    with LocalBackend(preload=["transformers.LlamaForCausalLM"]) as own:
        yield own


def struck(finished: Finished) -> int:
    return len(list((finished.folder / "ids").glob("struck-*")))


def undisturbed(finished: Finished, calm: Finished) -> None:
    assert finished.outcome.code == 0, finished.failure + "".join(map(str, finished.printed.text.values()))
    assert_same_bits(calm, finished)


@pytest.mark.on_cuda_too(some=["backward", "shadow's update"])
@pytest.mark.parametrize("model", MODELS if EVERYTHING else ["gpt"])
@pytest.mark.parametrize("point", [*IN_THE_STEP, *STAGE_POINTS])
def test_a_worker_killed_in_a_step(
    backend: LocalBackend, tmp_path: Path, calm: dict[str, Finished], point: str, model: str
) -> None:
    device = "1" if point in ("receive activations", "send gradients") else "0"
    chaos = Chaos(backend, tmp_path / "job", devices=3, script=JOB)
    finished = chaos.run(faults=[(device, point, 7)], model=model, **CASE)
    assert struck(finished) == 1
    undisturbed(finished, calm[model])


@pytest.mark.parametrize(("device", "point"), list(zip("201", IN_INFERENCE, strict=True)))
def test_a_worker_killed_in_an_evaluation(
    cpus: LocalBackend, run_on_cpus: Launcher, tmp_path: Path, device: str, point: str
) -> None:
    """Of two steps, of which the first is made twice, and the evaluation after them."""
    case = {"model": "gpt", "copies": 2, "examples": 16, "evaluate": True}
    in_steps = 3 * 4 if point != "evaluate" else 0
    chaos = Chaos(cpus, tmp_path / "job", devices=3, script=JOB)
    finished = chaos.run(faults=[(device, point, in_steps + 2)], **case)
    assert struck(finished) == 1
    undisturbed(finished, run(run_on_cpus, **case))


def test_two_killed_one_after_another(cpus: LocalBackend, tmp_path: Path, calm: dict[str, Finished]) -> None:
    faults = [("3", "forward", 9), ("1", "backward", 25)]
    finished = Chaos(cpus, tmp_path / "job", devices=4, script=JOB).run(faults=faults, model="resnet", **CASE)
    assert struck(finished) == 2
    undisturbed(finished, calm["resnet"])


@pytest.mark.on_cuda_too(some=[])
@pytest.mark.parametrize("model", MODELS if EVERYTHING else ["gpt"])
def test_a_job_grows_and_shrinks(backend: LocalBackend, tmp_path: Path, calm: dict[str, Finished], model: str) -> None:
    strikes = [Strike(2, "resize", devices=4), Strike(5, "resize", devices=3), Strike(7, "resize", devices=1)]
    chaos = Chaos(backend, tmp_path / "job", devices=2, script=JOB)
    finished = chaos.run_held(strikes, model=model, **CASE)
    assert chaos.done["resize"] == 3
    undisturbed(finished, calm[model])


def reshaped(devices: int) -> Strike:
    return Strike(2, "resize", devices=devices, waits=True)


LOST = Strike(2, "kill", victim=1, waits=True)
RESHAPED = {
    "gpt": ("2 x 2", [reshaped(3), reshaped(4)]),
    "resnet": ("data parallel", [reshaped(4), reshaped(2)]),
    "llama": ("2 x 2", [LOST, reshaped(2)]),
}


@pytest.mark.parametrize("model", MODELS)
def test_a_job_changes_from_a_grid_given_by_hand_to_pipelines_and_back(
    cpus: LocalBackend, request: pytest.FixtureRequest, tmp_path: Path, model: str
) -> None:
    """On any other number of devices a job has the usual grid: a pipeline of as many devices."""
    backend = request.getfixturevalue("loaded") if model == "llama" else cpus
    name, strikes = RESHAPED[model]
    grid, case = GRIDS[name], {"model": model, "copies": 2, "epochs": 12}
    chaos = Chaos(backend, tmp_path / "job", devices=1 + max(map(max, grid)), script=JOB, cells=grid)
    finished = chaos.run_held(strikes, **case)
    undisturbed(finished, run(Launcher(backend, tmp_path / "calm"), **case))
    assert len(finished.changes) == len(strikes)
    for change in finished.changes:
        by_hand = len(change.devices) == 1 + max(map(max, grid))
        cells = given_cells(grid, 4, 4, change.devices) if by_hand else pipelines(4, 4, change.devices)
        assert change.cells == cells.rows


def test_without_copies_a_death_ends_the_job_and_says_what_is_lost(cpus: LocalBackend, tmp_path: Path) -> None:
    chaos = Chaos(cpus, tmp_path / "job", devices=2, script=JOB)
    finished = chaos.run(faults=[("1", "backward", 7)], model="gpt", epochs=2, copies=1)
    assert finished.outcome.code != 0
    assert "stages 2, 3: lost with" in finished.failure
    assert "on one device only: stages 0, 1, 2, 3" in finished.err()


@pytest.mark.on_cuda_too(some=[])
@pytest.mark.parametrize(
    ("model", "first", "then"),
    [
        (model, *shape)
        for model in MODELS
        for shape in SHAPES
        if EVERYTHING or model == "gpt" or (model, shape) == ("resnet", SHAPES[-1])
    ],
)
def test_a_job_resumed_on_another_shape_ends_with_the_same_bits(
    run_job: Launcher, calm: dict[str, Finished], tmp_path: Path, model: str, first: int, then: int
) -> None:
    checkpoint = str(tmp_path / "checkpoint.pt")
    run(run_job, first, model=model, stop_at=4, save=checkpoint, **CASE)
    assert_same_bits(calm[model], run(run_job, then, model=model, load=checkpoint, **CASE))


def test_an_export_is_a_plain_state_dict(run_job: Launcher, tmp_path: Path) -> None:
    one, other = str(tmp_path / "one.pt"), str(tmp_path / "other.pt")
    run(run_job, 1, export=one, epochs=1)
    run(run_job, 3, export=other, epochs=1)
    mine, theirs = torch.load(one), torch.load(other)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    from tests.stages.models import MODELS

    stages = torch.nn.ModuleList(build() for build in MODELS["gpt"]()["stages"])
    stages.load_state_dict(mine)
    assert torch.equal(stages[3].out.weight, stages[0].wte.weight)
