"""Stages on devices of several types: emulated ones, which change no bit, and real ones, which round differently."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.conftest import Finished, run_to_its_end
from tests.stages.test_same_bits_with_stages import assert_same_bits, said
from virtualflow.backends.local import LocalBackend
from virtualflow.cli.options import devices_of
from virtualflow.core import stage_profile
from virtualflow.core.cell_schedule import BACKWARD, FORWARD, CellRun
from virtualflow.core.cells import given_cells
from virtualflow.core.emulation import Emulated
from virtualflow.core.stage_profile import StagedProfile, StagedWorkload, StagePoint, UnitFigures
from virtualflow.errors import ConfigError
from virtualflow.events import ReplicasAligned, StepDone
from virtualflow.job.folder import JobSpec
from virtualflow.solver.grid_costs import costs_at
from virtualflow.solver.grid_forecast import forecast

JOB = Path(__file__).with_name("job.py")
UNEVEN = [[0] * 4, [0] * 4, [0, 0, 1, 1], [0, 0, 2, 2]]  # the first device is the faster one


def profile_of(name: str, seconds: float) -> StagedProfile:
    """A device type on which each stage takes *seconds* for one example, a third of it forward."""
    points = tuple(StagePoint(size, size * seconds / 3, 2 * size * seconds / 3, 1, 0, 1) for size in (1, 2))
    units = tuple(UnitFigures(stages, 4, 8, 8, seconds) for stages in ((0,), (0, 3), (1,), (2,), (3,)))
    return StagedProfile(name, (points,) * 4, units)


FAST, SLOW = profile_of("fast", 0.004), profile_of("slow", 0.008)


def run(
    backend: LocalBackend,
    folder: Path,
    devices: Mapping[str, Emulated | None],
    script: Path = JOB,
    cells: list[list[int]] | None = None,
    **case: Any,
) -> Finished:
    emulated = {name: each.to_json() for name, each in devices.items() if each is not None}
    rows = tuple(map(tuple, cells)) if cells is not None else None
    arguments = (json.dumps({"model": "gpt", "epochs": 1} | case),)
    job = JobSpec.of("job", str(script), arguments, tuple(devices), emulated=emulated, cells=rows, device_type="cpu")
    return run_to_its_end(job, backend, folder / "job")


@pytest.fixture(scope="module")
def alone(cpus: LocalBackend, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The run on one plain device."""
    return run(cpus, tmp_path_factory.mktemp("alone"), {"0": None})


def test_a_grid_over_emulated_types_has_the_bits_of_one_device_and_takes_what_was_forecast(
    cpus: LocalBackend, tmp_path: Path, alone: Finished
) -> None:
    devices = {"fast:0": Emulated(staged=FAST), "slow:0": Emulated(staged=SLOW), "slow:1": Emulated(staged=SLOW)}
    finished = run(cpus, tmp_path, devices, cells=UNEVEN)
    assert_same_bits(alone, finished)
    workload = StagedWorkload("gpt", {"fast": FAST, "slow": SLOW})
    expected = forecast(given_cells(UNEVEN, 4, 4, list(devices)), costs_at(workload, ("fast", "slow"), 2), "1f1b")
    taken = [event.seconds for event in finished.events if isinstance(event, StepDone)]
    assert median(taken) >= 0.99 * expected.step_seconds  # no device computes faster than what it stands for


@pytest.mark.parametrize("devices", ["cpu@0.5:1,cpu:1", "V100:1,P100:1"])
def test_types_of_whose_stages_nothing_is_known(
    cpus: LocalBackend, tmp_path: Path, alone: Finished, devices: str
) -> None:
    known = devices_of(devices, None, "resnet50", 0.01)
    emulated = {
        name: Emulated.from_json(known.emulated[name]) if name in known.emulated else None for name in known.names
    }
    assert_same_bits(alone, run(cpus, tmp_path, emulated))


def test_an_emulated_cell_takes_its_stages_time_and_of_a_whole_models_an_equal_part() -> None:
    ahead, back = CellRun(FORWARD, 2, 0), CellRun(BACKWARD, 2, 0)
    staged = Emulated(staged=FAST, slower_from=5, slower=3.0)
    assert staged.cell_seconds(ahead, 4, 2, 1.0, step=4) == pytest.approx(0.008 / 3)
    assert staged.cell_seconds(back, 4, 2, 1.0, step=5) == pytest.approx(3 * 0.016 / 3)
    assert staged.unit_seconds((0, 3), 4) == 0.004
    whole = Emulated(points=((2, 1.2),), update_seconds=0.4)
    assert whole.cell_seconds(ahead, 4, 2, 1.0, step=0) == pytest.approx(0.1)
    assert whole.cell_seconds(back, 4, 2, 1.0, step=0) == pytest.approx(0.2)
    assert sum(whole.unit_seconds(unit, 4) for unit in ((0,), (0, 3), (1,), (2,), (3,))) == pytest.approx(0.4)
    assert Emulated(speed=0.5).cell_seconds(back, 4, 2, 1.0, step=0) == 2.0
    assert Emulated.from_json(json.loads(json.dumps(staged.to_json()))) == staged


@pytest.mark.parametrize(("stages", "reason"), [(3, "in 4 stages, and this one has 3"), (None, "is not cut")])
def test_a_profile_of_another_cut_is_refused(stages: int | None, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Emulated(staged=FAST).check(stages)


def test_a_profile_of_another_cut_ends_a_job_before_it_trains(cpus: LocalBackend, tmp_path: Path) -> None:
    short = StagedProfile("short", FAST.stages[:2], ())
    with pytest.raises(
        RuntimeError, match="short is emulated by the profile of a model in 2 stages, and this one has 4"
    ):
        run(cpus, tmp_path, {"0": Emulated(staged=short)})


def test_a_device_file_names_a_stage_profile(tmp_path: Path) -> None:
    written = tmp_path / "fast.json"
    written.write_text(json.dumps(stage_profile.to_json(StagedWorkload("gpt", {"fast": FAST}))))
    file = tmp_path / "devices.toml"
    file.write_text(f'time_scale = 0.5\n[device.fast]\nprofile = "{written}"\n')
    found = Emulated.from_json(devices_of("fast:1", file, None, None).emulated["fast:0"])
    assert found == Emulated(staged=FAST.scaled(0.5))
    assert found.staged is not None
    assert asdict(found.staged.stages[0][1])["forward_seconds"] == pytest.approx(0.004 / 3)


SPOILED = """
import torch, virtualflow as vf
from tests.stages.models import MODELS, examples
from virtualflow.train import comparisons, solo

comparisons.COMPARE_EVERY = 4
me = solo.installed()

class Spoiled(torch.optim.SGD):
    updates = 0

    def step(self):
        super().step()
        Spoiled.updates += 1
        if me.device == me.devices[-1] and Spoiled.updates == 1:
            with torch.no_grad():
                self.param_groups[0]["params"][0].view(-1)[0] += 1e-6

model = MODELS["gpt"]() | {"optimizer": lambda params: Spoiled(params, lr=0.1, momentum=0.9)}
trainer = vf.Trainer(**model, batch_size=8, virtual_nodes=4, seed=1, copies=2)
for _ in trainer.epochs(1):
    for batch in trainer.batches(examples("gpt", 48)):
        trainer.step(batch)
digest = trainer.digest()
if trainer.is_lead:
    print(digest)
"""


def test_copies_that_round_differently_are_set_right_on_mixed_types(cpus: LocalBackend, tmp_path: Path) -> None:
    """Two types by their names only, which run on cores: one worker is made to round differently by hand."""
    script = tmp_path / "train.py"
    script.write_text(SPOILED)
    finished = run(cpus, tmp_path, {"a:0": None, "b:0": None}, script)
    (aligned,) = [event for event in finished.events if isinstance(event, ReplicasAligned)]
    assert (aligned.step, aligned.ranks) == (4, ["1"])
    assert said(finished)


def test_copies_that_differ_on_equal_devices_are_refused_at_the_end_of_an_epoch(
    cpus: LocalBackend, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SPOILED)
    with pytest.raises(RuntimeError, match=r"devices 0 and 1 hold different values of .* at the end of epoch 0"):
        run(cpus, tmp_path, {"0": None, "1": None}, script)
