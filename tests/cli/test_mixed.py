"""``vf profile``, ``vf solve``, ``vf plot`` and ``vf run`` on emulated device types, as a person types them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.cli.test_jobs import at_home
from virtualflow.cli.main import app
from virtualflow.errors import VirtualFlowError

pytestmark = [
    pytest.mark.timeout(400),  # a busy machine decides nothing
]
TRAIN = """
import torch, virtualflow as vf
from torch import nn
from torch.nn.functional import mse_loss

vf.seed(0)
data = torch.utils.data.TensorDataset(torch.randn(256, 1024), torch.randn(256, 1))
model = nn.Sequential(nn.Linear(1024, {width}), nn.ReLU(), nn.Linear({width}, 1))
trainer = vf.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.01), lambda m, b: mse_loss(m(b[0]), b[1]),
                     batch_size=32, virtual_nodes=8)
for _ in trainer.epochs(1):
    for batch in trainer.batches(data):
        trainer.step(batch)
if trainer.is_lead:
    print(trainer.digest())
"""
DEVICES = """
time_scale = 0.05
[device.V100]
workload = "bert-base"
[device.K80]
workload = "bert-base"
"""


def vf(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "virtualflow.cli.main", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    return written(tmp_path)


def written(folder: Path) -> Path:
    """*folder* with the script and the devices of these tests."""
    (folder / "train.py").write_text(TRAIN.format(width=8))
    (folder / "devices.toml").write_text(DEVICES)
    return folder


def solved(*words: str) -> dict[str, object]:
    done = CliRunner().invoke(app, ["solve", *words, "--json"], catch_exceptions=False)
    report: dict[str, object] = json.loads(done.stdout)
    return report


def refused(*words: str) -> str:
    """In this process: what an error of ours looks like on a terminal is tested with the other verbs."""
    with pytest.raises(VirtualFlowError) as refusal:
        CliRunner().invoke(app, list(words), catch_exceptions=False)
    return str(refusal.value)


def test_the_papers_h3_is_found_and_predicted() -> None:
    words = ("--workload", "resnet50", "--batch-size", "8192", "--devices", "V100:1+1,P100:4+4")
    best = solved(*words)
    assert best["devices"] == [
        {"type": "V100", "count": 2, "virtual_nodes": 8, "node_size": 256},
        {"type": "P100", "count": 8, "virtual_nodes": 2, "node_size": 256},
    ]
    assert best["examples_per_second"] == pytest.approx(1.423 * 1969, rel=0.02)
    assert best["step_time_seconds"] == pytest.approx(8192 / float(str(best["examples_per_second"])))
    others = best["alternatives"]
    assert isinstance(others, list)
    assert [len(plan["devices"]) for plan in others].count(1) >= 2  # each type alone
    assert all(plan["why"] for plan in others)
    assert solved(*words, "--evaluate", "V100=8x256,P100=2x256")["step_time_seconds"] == best["step_time_seconds"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--workload resnet50 --batch-size 8192 --devices TPU:4", "no profile of resnet50 on device type TPU"),
        ("--workload resnet50 --batch-size 400 --devices V100:2", "nearest that work"),
        ("--workload resnet50 --batch-size 8192 --devices V100:2 --virtual-nodes 8", "fits on no device"),
        ("--workload resnet50 --batch-size 8192 --devices V100:2 --virtual-nodes 7", "do not divide"),
        ("--workload resnet50 --batch-size 8192 --devices V100", "expected TYPE:COUNT"),
        ("--workload resnet50 --batch-size 8192 --devices V100:1,V100:1", "twice"),
        ("--workload resnet50 --batch-size 8192 --devices V100:2 --evaluate V100=8x256", "4096 examples a step"),
        ("--workload resnet50 --batch-size 8192 --devices V100:2 --evaluate K80=8x256", "expected TYPE="),
        ("--workload nonsense --batch-size 8 --devices V100:2", "there is no workload"),
        ("--batch-size 8 --devices V100:2", "give the workload"),
        ("--profiles . --batch-size 8 --devices V100:2", "no profile in"),
    ],
)
def test_bad_questions_get_clear_answers(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: str, reason: str
) -> None:
    monkeypatch.chdir(folder)
    assert reason in refused("solve", *words.split())


def test_a_damaged_profile_names_itself(folder: Path) -> None:
    place = folder / "profiles"
    place.mkdir()
    for text in ("{", "{}", '{"format": "virtualflow profile", "version": 99}'):
        (place / "V100.json").write_text(text)
        assert "V100.json" in refused("solve", "--profiles", str(place), "--batch-size", "8", "--devices", "V100:2")


EMULATED = ("--device-file", "devices.toml")
PLAN = "plan.json"


def done(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    ended = vf(*words, cwd=folder)
    assert ended.returncode == 0, ended.stderr
    return ended


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose script has profiles of both device types, for the tests below."""
    folder = written(tmp_path_factory.mktemp("profiled"))
    with at_home(folder / "home"):
        done(folder, "profile", "--devices", "V100:1,K80:1", *EMULATED, "--largest", "6", "train.py")
    return folder


@pytest.fixture(scope="module")
def planned(profiled: Path) -> subprocess.CompletedProcess[str]:
    words = ("--workload", "train", "--batch-size", "32", "--devices", "V100:1,K80:1", "-o", PLAN, "--explain")
    with at_home(profiled / "home"):
        return done(profiled, "solve", *words)


@pytest.fixture(scope="module")
def profile(profiled: Path) -> dict[str, Any]:
    """That of the K80."""
    known: dict[str, Any] = json.loads((profiled / "home/profiles/train/K80.json").read_text())
    return known


def test_a_profile_has_a_measured_time_and_memory_for_each_node_size(profile: dict[str, Any]) -> None:
    (result,) = profile["profiles"]
    assert [point["node_size"] for point in result["points"]] == [1, 2, 3, 4, 6]
    assert all(point["low"] <= point["seconds"] <= point["high"] for point in result["points"])
    assert all(point["peak_bytes"] > 0 for point in result["points"])


def test_an_emulated_device_is_profiled_as_no_faster_than_what_it_stands_for(profile: dict[str, Any]) -> None:
    author = {1: 6.46, 2: 10.988, 4: 15.952}  # examples/s of one K80
    seconds = {point["node_size"]: point["seconds"] for point in profile["profiles"][0]["points"]}
    assert all(seconds[size] >= 0.05 * size / speed for size, speed in author.items())


def test_a_profile_says_of_which_model_it_is_and_what_sums_cost(profile: dict[str, Any]) -> None:
    assert profile["profiles"][0]["facts"]["parameters"] == 1024 * 8 + 8 + 8 + 1
    assert list(profile["communication"]["by_devices"]) == ["2"]


def test_a_plan_made_of_profiles_has_a_predicted_speed(planned: subprocess.CompletedProcess[str]) -> None:
    assert "examples/s" in planned.stdout


@pytest.mark.parametrize(("what", "more"), [("profile", ()), ("plan", ("--plan", PLAN))])
@pytest.mark.usefixtures("planned")
def test_profiles_and_plans_are_drawn(profiled: Path, what: str, more: tuple[str, ...]) -> None:
    with at_home(profiled / "home"):
        done(profiled, "plot", what, "--workload", "train", *more, "-o", f"{what}.png")
    assert (profiled / f"{what}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("planned")
def test_a_job_runs_by_its_plan(profiled: Path) -> None:
    with at_home(profiled / "home"):
        done(profiled, "run", "--plan", PLAN, *EMULATED, "train.py")


def test_a_job_on_profiled_devices_is_mapped_by_their_speed_and_has_the_bits_of_one_device(profiled: Path) -> None:
    with at_home(profiled / "home"):
        mapped = done(profiled, "run", "--devices", "V100:1,K80:1", *EMULATED, "train.py")
        alone = done(profiled, "run", "--devices", "1", "train.py")
    assert "mapping: " in mapped.stderr
    assert mapped.stdout.splitlines()[1:] == alone.stdout.splitlines()[1:]


def test_memory_that_runs_out_ends_the_profile_and_not_the_profiler(folder: Path) -> None:
    (folder / "large.py").write_text(
        TRAIN.format(width=8).replace(
            "mse_loss(m(b[0]), b[1])", "mse_loss(m(b[0].repeat(20000, 1)[:len(b[0])] * 1), b[1])"
        )
    )
    made = vf("profile", "--device-type", "cpu", "--memory-limit", "900M", "large.py", cwd=folder)
    assert made.returncode == 0, made.stderr
    assert "larger ones do not fit into its memory" in made.stderr
    (profile,) = json.loads((folder / "home/profiles/large/cpu.json").read_text())["profiles"]
    assert profile["ended_by"] == "memory"
    assert 1 <= profile["points"][-1]["node_size"] < 64


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("run --devices V100:1,K80:1 train.py", "vf profile --devices K80:1,V100:1 train.py"),
        ("run --devices cpu@7:2 train.py", "above 0 and at most 1"),
        ("run --plan missing.json train.py", "cannot read the plan"),
        ("run --plan train.py train.py", "is not a plan"),
        ("run --devices old:1 --device-file missing.toml train.py", "cannot read the device file"),
        ("profile train.py", "give either"),
        ("profile --device-type cpu missing.py", "no script"),
        ("profile --device-type cpu --machines 2 train.py", "go together"),
        ("profile --device-type cpu --listen 10.0.0.5:29400 --token-file token train.py", "go together"),
        ("profile --device-type cpu --machines 2 --listen 10.0.0.5:29400 train.py", "needs --token-file"),
        ("profile --device-type cpu --machines 2 --listen 10.0.0.5 --token-file token train.py", "not an address"),
        ("plot plan -o out.png --workload resnet50", "needs --plan"),
        ("plot nonsense -o out.png", "expected profile or plan"),
    ],
)
def test_mistakes_get_clear_answers(folder: Path, monkeypatch: pytest.MonkeyPatch, words: str, reason: str) -> None:
    monkeypatch.chdir(folder)
    assert reason in refused(*words.split())


def test_a_device_type_that_is_not_here_is_refused(folder: Path) -> None:
    done = vf("run", "--devices", "V100:2", "train.py", cwd=folder)
    assert done.returncode == 2
    assert "emulate a type" in done.stderr
