"""``vf solve``, ``vf explain`` and ``vf run --plan`` for a script whose model is cut into stages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from virtualflow.cli.main import app
from virtualflow.core import stage_profile
from virtualflow.core.stage_profile import Link, StagedProfile, StagedWorkload, StagePoint, UnitFigures

pytestmark = [
    pytest.mark.timeout(400),  # a busy machine decides nothing
]
TRAIN = """
import virtualflow as vf
from tests.stages.models import MODELS, examples

trainer = vf.Trainer(**MODELS["gpt"](), batch_size=8, virtual_nodes=4, seed=1)
for _ in trainer.epochs(1):
    for batch in trainer.batches(examples("gpt", 20)):
        trainer.step(batch)
digest = trainer.digest()
if trainer.is_lead:
    print(digest)
"""
RUNS = (("--devices", "1"), ("--devices", "2"), ("--plan", "plan.json"), ("--plan", "cut.json"))
GB = 10**9
ASKED = ("--batch-size", "8", "--devices", "V100:2", "--virtual-nodes", "4")


def profile_of(device_type: str, slow: float, memory: int | None) -> StagedProfile:
    """Four equal stages, of 1 GB with their optimizer and sums."""
    points = (StagePoint(1, 0.1 * slow, 0.2 * slow, GB // 10, 0, GB // 100),)
    units = tuple(UnitFigures((stage,), GB // 5, 2 * GB // 5, 2 * GB // 5, 0.0) for stage in range(4))
    return StagedProfile(device_type, (points,) * 4, units, memory)


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    """Those of a fast and a slow type."""
    folder = tmp_path / "profiles"
    folder.mkdir()
    for profile in (profile_of("V100", 1.0, 16 * GB), profile_of("P100", 4.0, 4 * GB)):
        workload = StagedWorkload("a model", {profile.device_type: profile}, Link(1e-3, 10.0 * GB))
        (folder / f"{profile.device_type}.json").write_text(json.dumps(stage_profile.to_json(workload)))
    return folder


def solved(profiles: Path, *words: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["solve", "--profiles", str(profiles), *words, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_the_fastest_way_on_two_types(profiles: Path) -> None:
    report = solved(profiles, "--batch-size", "8", "--virtual-nodes", "8", "--devices", "V100:2,P100:4")
    assert report["fits"]
    assert {entry["kind"] for entry in report["alternatives"]} == {"data parallel", "one pipeline"}
    for other in report["alternatives"]:
        assert not other["fits"] or other["step_time_seconds"] >= report["step_time_seconds"]
    assert report["step_time_seconds"] >= report["no_grid_below_seconds"]
    assert sum(entry["count"] for entry in report["devices"]) == len(report["forecast"])
    busy = {row["device"]: row["busy_seconds"] for row in report["forecast"]}
    assert busy["V100:0"] > 0.1
    rows = [[int(owner) for owner in row.split(",")] for row in report["mapping"].split("/")]
    assert rows == report["cells"]
    assert (len(rows), len(rows[0])) == (4, 8)
    used = ",".join(f"{entry['type']}:{entry['count']}" for entry in report["devices"])
    asked = ["explain", "--profiles", str(profiles), "--stages", "4", "--batch-size", "8", "--virtual-nodes", "8"]
    by_hand = [*asked, "--devices", used, "--mapping", report["mapping"], "--json"]
    explained = json.loads(CliRunner().invoke(app, by_hand, catch_exceptions=False).stdout)
    assert explained["step_time_seconds"] == pytest.approx(report["step_time_seconds"])


def test_what_is_printed_has_the_picture_the_memory_and_the_others(profiles: Path) -> None:
    words = ["solve", "--profiles", str(profiles), "--batch-size", "8", "--virtual-nodes", "8", "--devices", "P100:4"]
    shown = CliRunner().invoke(app, words, catch_exceptions=False).output
    assert "a = P100:0" in shown
    assert "data parallel: does not fit: needs" in shown
    assert "--mapping " in shown


def test_a_model_that_fits_nowhere_is_refused_with_what_it_needs(profiles: Path) -> None:
    words = ["solve", "--profiles", str(profiles), "--batch-size", "8", "--virtual-nodes", "8", "--devices", "V100:2"]
    done = CliRunner().invoke(app, [*words, "--memory", "V100=2G"])
    assert "tried, a pipeline of 2 devices needs the least memory" in str(done.exception)
    assert "a V100 has 2 GB" in str(done.exception)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--batch-size", "8", "--devices", "V100:2"), "say how many virtual nodes"),
        (("--batch-size", "9", "--devices", "V100:2", "--virtual-nodes", "4"), "do not divide a batch of 9"),
        (("--batch-size", "8", "--devices", "K80:2", "--virtual-nodes", "4"), "no stage profile of a model on device"),
        ((*ASKED, "--memory", "2X"), "--memory 2X: expected a size"),
        ((*ASKED, "--memory", "0"), "--memory 0: a device without memory runs nothing"),
        ((*ASKED, "--memory", "V100=2G,V100=4G"), "it names V100 twice"),
        ((*ASKED, "--memory", "K80=2G"), "there is no device type 'K80'. There are V100."),
    ],
)
def test_bad_questions_get_a_clear_answer(profiles: Path, words: tuple[str, ...], message: str) -> None:
    done = CliRunner().invoke(app, ["solve", "--profiles", str(profiles), *words])
    assert message in str(done.exception)


def test_profiles_of_whole_models_and_of_stages_are_told_apart(profiles: Path) -> None:
    whole = {"format": "virtualflow profile", "version": 1}
    (profiles / "K80.json").write_text(json.dumps(whole))
    words = ["solve", "--profiles", str(profiles), "--batch-size", "8", "--virtual-nodes", "8", "--devices", "V100:1"]
    assert "is of a whole model, and others beside it" in str(CliRunner().invoke(app, words).exception)


def test_explain_counts_bytes_where_there_is_a_profile(profiles: Path) -> None:
    grid = ["explain", "--stages", "4", "--batch-size", "4", "--virtual-nodes", "4", "--copies", "1", "--json"]
    more = ["--devices", "V100:2", "--mapping", "0,0,0,0/0,0,0,0/1,1,1,1/1,1,1,1"]
    report = json.loads(CliRunner().invoke(app, [*grid, *more, "--profiles", str(profiles)]).stdout)
    first, second = report["cells"]
    assert first["state_bytes"] == second["state_bytes"] == 2 * GB
    assert (first["activation_bytes"], second["activation_bytes"]) == (4 * GB // 10, 2 * GB // 10)
    assert first["sent_bytes"] == second["sent_bytes"] == 4 * GB // 100
    assert report["step_time_seconds"] > 4 * 0.6
    for size, fits in (("2GB", False), ("3GB", True)):  # each needs 2.4 billion bytes
        given = CliRunner().invoke(app, [*grid, *more, "--profiles", str(profiles), "--memory", size])
        assert [row["fits"] for row in json.loads(given.stdout)["cells"]] == [fits, fits]
    unknown = CliRunner().invoke(app, [*grid, *more, "--memory", "2GB"])
    assert "--memory needs --workload or --profiles" in str(unknown.exception)
    counted = json.loads(CliRunner().invoke(app, [*grid, *more]).stdout)
    assert [row["messages_sent"] for row in counted["cells"]] == [4, 4]
    assert [row["bubble"] for row in counted["cells"]] == [0.2, 0.2]
    assert all(0.2 < row["bubble"] < 0.21 for row in report["cells"])  # messages take a little


def test_explain_draws_many_devices_without_numbers() -> None:
    words = "explain --stages 2 --batch-size 128 --virtual-nodes 128 --devices 128"
    shown = CliRunner().invoke(app, words.split()).output
    assert "a = 0" in shown
    assert "x2 = 127" in shown


def test_a_plan_of_profiled_stages_runs_with_the_bits_of_one_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "train.py").write_text(TRAIN)

    def vf(*words: str) -> str:
        command = [sys.executable, "-m", "virtualflow.cli.main", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    vf("profile", "--devices", "3", "--largest", "2", "train.py")
    asked = ("--workload", "train.py", "--batch-size", "8", "--virtual-nodes", "4", "--devices", "3", "--copies", "1")
    assert "--mapping" in vf("solve", *asked, "-o", "plan.json")
    (parallel,) = [
        entry
        for entry in json.loads((tmp_path / "plan.json").read_text())["alternatives"]
        if entry["kind"] == "data parallel"
    ]
    too_little = max(row["memory_bytes"] for row in parallel["forecast"]) - 1
    vf("solve", *asked, "--memory", f"cpu={too_little}", "-o", "cut.json")
    cut = json.loads((tmp_path / "cut.json").read_text())
    assert any(len(set(column)) > 1 for column in zip(*cut["cells"], strict=True))  # a node on several devices
    digests = [vf("run", *devices, "train.py").split()[-1] for devices in RUNS]
    assert digests[1:] == digests[:1] * 3


def test_a_mixed_plan_runs_by_its_mapping_on_equal_devices(profiles: Path, tmp_path: Path) -> None:
    report = solved(profiles, "--batch-size", "8", "--virtual-nodes", "4", "--devices", "V100:1,P100:2")
    count = sum(entry["count"] for entry in report["devices"])
    assert {entry["type"] for entry in report["devices"]} == {"V100", "P100"}
    words = (
        f"explain --stages 4 --batch-size 8 --virtual-nodes 4 --devices {count} --mapping {report['mapping']} --json"
    )
    explained = json.loads(CliRunner().invoke(app, words.split(), catch_exceptions=False).stdout)
    assert len(explained["cells"]) == count


def test_a_plan_that_is_damaged_is_refused(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"format": "virtualflow plan", "version": 1, "cells": [["x"]], "devices": []}))
    done = CliRunner().invoke(app, ["run", "--plan", str(plan), str(tmp_path / "train.py")])
    assert "is not a plan" in str(done.exception)
