"""What ``vf profile`` measures, and what it refuses to: real workers, and scripts with slow data or bad numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from virtualflow.cli.main import app
from virtualflow.errors import LaunchError

TRAIN = """
import sys, time, torch, virtualflow as vf
from torch import nn
from torch.nn.functional import mse_loss

class Slow:
    def __len__(self): return 16
    def __getitem__(self, index):
        time.sleep(0.05)
        return torch.randn(4), torch.randn(1)

vf.seed(0)
model = nn.Linear(4, 1)
loss_fn = lambda m, b: mse_loss(m(b[0]), b[1]) * float(sys.argv[2])
trainer = vf.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.01), loss_fn, batch_size=4, virtual_nodes=2,
                     loader_workers=int(sys.argv[1]), on_nan="continue")
for _ in trainer.epochs(1):
    for batch in trainer.batches(Slow()):
        trainer.step(batch)
"""
SLEEP_SECONDS = 0.05  # for each example


def profiled(folder: Path, *words: str, options: tuple[str, ...] = ()) -> tuple[dict[str, Any], str]:
    script = folder / "train.py"
    script.write_text(TRAIN)
    command = ["profile", "--json", "--largest", "2", *(options or ("--device-type", "cpu")), str(script), *words]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    ((profile,),) = [workload["profiles"] for workload in json.loads(done.stdout)]
    return profile, done.stderr


def test_what_loader_processes_do_meanwhile_is_no_part_of_a_wave(tmp_path: Path) -> None:
    profile, _ = profiled(tmp_path, "1", "1.0")
    assert [point["node_size"] for point in profile["points"]] == [1, 2]
    for point in profile["points"]:
        assert point["loading_seconds"] >= SLEEP_SECONDS * point["node_size"]
        assert point["seconds"] < SLEEP_SECONDS
    assert profile["ended_by"] == "largest"


def test_what_is_loaded_in_a_wave_is_a_part_of_it_and_a_profile_without_time_is_no_limit_of_memory(
    tmp_path: Path,
) -> None:
    profile, _ = profiled(tmp_path, "0", "1.0", options=("--device-type", "cpu", "--minutes", "0.05"))
    (point,) = profile["points"]
    assert point["seconds"] >= point["loading_seconds"] >= SLEEP_SECONDS
    assert profile["ended_by"] == "time"


@pytest.mark.parametrize(
    ("words", "options", "told"),
    [
        (("1", "nan"), ("--device-type", "cpu"), "what would be measured is void"),
        (
            ("1", "1.0"),
            ("--device-type", "V100", "--emulate", "bert-base", "--time-scale", "1e-9"),
            "too many waves took longer here than on the device that they emulate",
        ),
    ],
)
def test_void_figures_are_refused_and_leave_no_file(
    tmp_path: Path, vf_home: Path, words: tuple[str, ...], options: tuple[str, ...], told: str
) -> None:
    with pytest.raises(LaunchError, match=told):
        profiled(tmp_path, *words, options=options)
    assert not list(vf_home.glob("profiles/**/*.json"))
