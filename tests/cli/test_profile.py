"""What ``vf profile`` measures, and what it refuses to: real workers, and scripts with slow data or bad numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests import fakecuda
from tests.fakecuda import build
from virtualflow.cli.main import app
from virtualflow.cli.options import device_type_of
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


# Each example needs 4 MB of the device for a moment, and four don't fit; a wave launches 50 kernels and some more.
ON_CUDA = """
import sys, torch, virtualflow as vf
from torch import nn
from torch.nn.functional import mse_loss
from tests.fakecuda import install as fake

vf.seed(0)
model = nn.Linear(4, 1)

def loss_fn(model, batch):
    torch.zeros(1_000_000 * len(batch[0]), device=batch[0].device)
    for _ in range(50):
        batch[0].add_(0.0)
    return mse_loss(model(batch[0]), batch[1])

trainer = vf.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.01), loss_fn, batch_size=4, virtual_nodes=2)
fake.pace(kernel_microseconds=float(sys.argv[1]))
fake.set_capacity(torch.cuda.current_device(), 15_000_000)
for _ in trainer.epochs(1):
    for batch in trainer.batches(torch.utils.data.TensorDataset(torch.randn(16, 4), torch.randn(16, 1))):
        trainer.step(batch)
"""


def profiled(
    folder: Path, *words: str, options: tuple[str, ...] = (), text: str = TRAIN, largest: int = 2
) -> tuple[dict[str, Any], str]:
    script = folder / "train.py"
    script.write_text(text)
    measured = ["profile", "--json", "--largest", str(largest), *(options or ("--device-type", "cpu"))]
    command = [*measured, str(script), *words]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    ((profile,),) = [workload["profiles"] for workload in json.loads(done.stdout)]
    return profile, done.stderr


def test_what_loader_processes_do_meanwhile_is_no_part_of_a_wave(tmp_path: Path) -> None:
    profile, _ = profiled(tmp_path, "1", "1.0")
    assert [point["node_size"] for point in profile["points"]] == [1, 2]
    for point in profile["points"]:
        assert point["loading_seconds"] >= SLEEP_SECONDS * point["node_size"]
        assert point["seconds"] < point["loading_seconds"]
    assert profile["ended_by"] == "largest"


@pytest.mark.skipif(build.why_not() is not None, reason=build.why_not() or "")
def test_on_an_accelerator_time_peak_and_limit_are_the_devices_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in fakecuda.environment(1).items():
        monkeypatch.setenv(name, value)
    kernel_seconds = 0.0002
    options = ("--device-type", "GPU")  # a part of its name
    profile, _ = profiled(tmp_path, str(1e6 * kernel_seconds), options=options, text=ON_CUDA, largest=8)
    assert profile["facts"]["device_type"] == "Fake GPU"
    assert [point["node_size"] for point in profile["points"]] == [1, 2, 3]
    for point in profile["points"]:
        assert point["seconds"] >= 50 * kernel_seconds  # the host only launches them
        needed = 4_000_000 * point["node_size"]
        assert needed <= point["peak_bytes"] < needed + 100_000  # and not what the process has, with torch in it
    assert profile["ended_by"] == "memory"


@pytest.mark.skipif(build.why_not() is not None, reason=build.why_not() or "")
def test_beside_an_accelerator_cpu_is_a_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in fakecuda.environment(1).items():
        monkeypatch.setenv(name, value)
    profile, _ = profiled(tmp_path, "0", "1.0", largest=1)
    assert profile["facts"]["device_type"] == "cpu"


@pytest.mark.parametrize(
    ("text", "devices", "chosen"),
    [
        ("auto", "4", "auto"),
        ("auto", None, "auto"),
        ("auto", "cpu:4", "cpu"),
        ("auto", "cpu:1,cpu@0.5:2", "cpu"),
        ("auto", "V100:2,cpu:2", "auto"),
        ("cuda", "cpu:4", "cuda"),
    ],
)
def test_devices_that_are_named_cpu_are_cores(text: str, devices: str | None, chosen: str) -> None:
    assert device_type_of(text, devices) == chosen


def test_what_is_loaded_in_a_wave_is_a_part_of_it_and_a_profile_without_time_is_no_limit_of_memory(
    tmp_path: Path,
) -> None:
    profile, _ = profiled(tmp_path, "0", "1.0", options=("--device-type", "cpu", "--minutes", "0.05"))
    (point,) = profile["points"]
    assert point["seconds"] >= point["loading_seconds"] >= SLEEP_SECONDS
    assert profile["ended_by"] == "time"


@pytest.mark.parametrize(
    ("words", "options", "reason"),
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
    tmp_path: Path, vf_home: Path, words: tuple[str, ...], options: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(LaunchError, match=reason):
        profiled(tmp_path, *words, options=options)
    assert not list(vf_home.glob("profiles/**/*.json"))
