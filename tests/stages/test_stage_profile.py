"""``vf profile`` of a script whose model is cut into stages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from virtualflow.cli.main import app
from virtualflow.core import stage_profile
from virtualflow.core.stage_profile import StagedProfile, StagePoint, UnitFigures

TRAIN = """
import json, sys
import virtualflow as vf
from tests.stages.models import MODELS, examples

trainer = vf.Trainer(**MODELS[sys.argv[1]](), batch_size=8, virtual_nodes=4, seed=1, **json.loads(sys.argv[2]))
for _ in trainer.epochs(1):
    for batch in trainer.batches(examples(sys.argv[1], 20)):
        raise SystemExit("a step was made")
"""
WIDE_WEIGHTS = 4 * 2 * (512 * 512 + 512)


def profiled(folder: Path, *words: str, options: tuple[str, ...] = ("--device-type", "cpu")) -> Any:
    script = folder / "train.py"
    script.write_text(TRAIN)
    measured = CliRunner().invoke(app, ["profile", "--json", "--largest", "2", *options, str(script), *words])
    assert measured.exit_code == 0, measured.output
    (found,) = json.loads(measured.stdout)
    return found


def test_time_and_memory_of_each_stage_and_what_the_next_one_gets(tmp_path: Path) -> None:
    found = profiled(tmp_path, "wide", "{}")
    profile = stage_profile.from_json(found, "it").profile("cpu")
    assert profile.node_sizes == (1, 2)
    assert [unit.stages for unit in profile.units] == [(0,), (1,), (2,), (3,)]
    for unit in profile.units:
        assert unit.weight_bytes == WIDE_WEIGHTS
        assert 2 * WIDE_WEIGHTS <= unit.optimizer_bytes <= 2 * WIDE_WEIGHTS + 64  # Adam's two, and its steps
        assert unit.sum_bytes == 2 * WIDE_WEIGHTS
        assert unit.update_seconds > 0
    row = 4 * 512
    for size in (1, 2):
        first, second, _, last = profile.at(size)
        # The graph keeps the input and the result of ReLU; what came in and what goes out is alive, too.
        assert (first.crossing_bytes, second.crossing_bytes, last.crossing_bytes) == (size * row, size * row, 0)
        assert second.kept_bytes == 3 * size * row
        assert second.working_bytes == 0
    assert profile.facts["parameters"] == 4 * WIDE_WEIGHTS // 4


def test_recomputation_keeps_less_and_makes_the_rest_anew(tmp_path: Path) -> None:
    kept = stage_profile.from_json(profiled(tmp_path, "wide", "{}"), "it").profile("cpu").at(2)[1]
    again = stage_profile.from_json(profiled(tmp_path, "wide", '{"recompute": true}'), "it").profile("cpu").at(2)[1]
    assert again.kept_bytes < kept.kept_bytes
    assert again.working_bytes > 0
    assert again.kept_bytes + again.working_bytes >= kept.kept_bytes


def test_tied_weights_dropout_and_messages_between_two_devices(tmp_path: Path) -> None:
    found = profiled(tmp_path, "gpt", "{}", options=("--devices", "2"))
    profile = stage_profile.from_json(found, "it").profile("cpu")
    assert [unit.stages for unit in profile.units] == [(0,), (0, 3), (1,), (2,), (3,)]
    assert found["link"]["latency_seconds"] > 0
    assert found["link"]["bytes_per_second"] > 0


def test_what_does_not_fit_ends_the_profile(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    measured = CliRunner().invoke(
        app, ["profile", "--memory-limit", "1M", "--device-type", "cpu", str(script), "wide", "{}"]
    )
    assert "not even one example of one stage fits" in str(measured.exception)


def test_an_emulated_device_is_profiled_as_no_faster_than_what_it_stands_for(tmp_path: Path) -> None:
    points = tuple((StagePoint(1, 0.004, 0.009, 1, 0, 1),) for _ in range(4))
    known = StagedProfile("V100", points, (UnitFigures((1,), 4, 8, 8, 0.02),))
    written, file = tmp_path / "V100.json", tmp_path / "devices.toml"
    written.write_text(json.dumps(stage_profile.to_json(stage_profile.StagedWorkload("it", {"V100": known}))))
    file.write_text(f'[device.V100]\nprofile = "{written}"\n')
    options = ("--devices", "V100:1", "--device-file", str(file))
    profile = stage_profile.from_json(profiled(tmp_path, "wide", "{}", options=options), "it").profile("V100")
    for point in profile.at(2):
        assert point.forward_seconds >= 2 * 0.004
        assert point.backward_seconds >= 2 * 0.009
    assert profile.units[1].update_seconds >= 0.02


def staged(*node_sizes: int, ended_by: str = "largest") -> StagedProfile:
    points = tuple(StagePoint(size, 0.1 + 0.1 * size, 0.2 + 0.2 * size, 10 * size, 0, size) for size in node_sizes)
    return StagedProfile("cpu", (points, points), (UnitFigures((0,), 4, 8, 8, 0.1),), ended_by=ended_by)


def test_between_points_a_line_is_drawn() -> None:
    point = staged(1, 3).at(2)[0]
    assert (point.forward_seconds, point.kept_bytes, point.crossing_bytes) == (pytest.approx(0.3), 20, 2)


def test_beyond_full_memory_nothing_is_guessed() -> None:
    with pytest.raises(Exception, match="do not fit on cpu, not even those of one stage"):
        staged(1, 2, ended_by="memory").at(3)
    assert staged(1, 2).at(4)[0].kept_bytes == 40


def test_profiles_of_other_cuts_do_not_go_together() -> None:
    one, other = staged(1), StagedProfile("V100", staged(1).stages[:1], ())
    with pytest.raises(Exception, match="cut in different ways"):
        stage_profile.merged([stage_profile.StagedWorkload("a", {p.device_type: p}) for p in (one, other)])


def test_a_profile_is_read_as_it_was_written() -> None:
    workload = stage_profile.StagedWorkload("a", {"cpu": staged(1, 2)}, stage_profile.Link(0.5, 10.0))
    assert stage_profile.from_json(json.loads(json.dumps(stage_profile.to_json(workload))), "it") == workload
    with pytest.raises(Exception, match="has version 99"):
        stage_profile.from_json(stage_profile.to_json(workload) | {"version": 99}, "it")
