"""Where the optimizer's state lies changes no bit: digest and certificate are those of a job that is not sharded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from tests.conftest import Finished, Launcher
from virtualflow.core.blocks import Block
from virtualflow.events.certificate import compare
from virtualflow.system.sealed_files import parts_folder
from virtualflow.train import checkpoint
from virtualflow.train.part_files import BLOCKS, with_paths
from virtualflow.train.sharded.saved_blocks import SavedBlocks
from virtualflow.train.state import described, flattened

EVERYTHING = "VF_ALL_GRIDS" in os.environ  # as in make chaos
JOB = Path(__file__).with_name("sharded_job.py")
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.05, "momentum": 0.9, "nesterov": True},
    "Adam": {"lr": 0.01, "amsgrad": True},
    "AdamW": {"lr": 0.01, "fused": True},
    "NAdam": {"lr": 0.01},
    "RAdam": {"lr": 0.01, "foreach": True},
    "Adamax": {"lr": 0.01},
    "Adagrad": {"lr": 0.05, "initial_accumulator_value": 0.1},
    "Adadelta": {"lr": 0.5},
    "RMSprop": {"lr": 0.01, "centered": True, "momentum": 0.5},
    "ASGD": {"lr": 0.05, "t0": 2.0},
    "Rprop": {"lr": 0.01},
    "Lion": {"lr": 0.001},
    "Adafactor": {"lr": 0.01},
    "Muon": {"lr": 0.01},
}
ON_ANY_NUMBER = {"SGD", "AdamW", "Muon"}  # cut, cut at fixed places as it is fused, and never cut


def run(run_job: Launcher, devices: int = 1, **case: Any) -> Finished:
    finished = run_job(JOB, devices, [json.dumps(case)])
    assert finished.outcome.code == 0, finished.failure + finished.err()
    return finished


def assert_same_bits(one: Finished, other: Finished) -> None:
    verdict = compare(one.certificate, other.certificate)
    assert verdict.equal, verdict
    assert one.digest == other.digest


@pytest.mark.on_cuda_too(some=["AdamW", "Lion"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_bits_do_not_depend_on_where_the_state_lies(run_job: Launcher, name: str) -> None:
    case = {"optimizer": name, "settings": OPTIMIZERS[name], "clip_grad_norm": 0.5}
    plain = run(run_job, 1, **case, sharding="none")
    # On three, tensors are cut, and no device holds everything.
    for devices in (1, 2, 3, 4) if EVERYTHING or name in ON_ANY_NUMBER else (3,):
        assert_same_bits(plain, run(run_job, devices, **case))


@pytest.mark.on_cuda_too
def test_accelerators_give_the_bits_of_cpus(run_job: Launcher, run_on_cpus: Launcher) -> None:
    case = {"optimizer": "AdamW", "settings": {"lr": 0.01, "foreach": True}, "clip_grad_norm": 0.5}
    plain = run(run_on_cpus, 1, **case, sharding="none")
    for devices in (2, 3, 4):
        assert_same_bits(plain, run(run_job, devices, **case))


@pytest.mark.on_cuda_too(some=[])
@pytest.mark.parametrize(
    "case",
    [
        {"groups": True, "clip_grad_norm": 1e-3},
        {"scaler": True, "settings": {"lr": 0.01}, "clip_grad_norm": 0.5},
        {"frozen_epochs": [0]},
        {"phases": True, "clip_grad_norm": 0.5},
        {"dtype": "float64"},
        {"dtype": "bfloat16", "optimizer": "SGD", "settings": {"lr": 0.05, "momentum": 0.9}},
        {"copies": 1},
        {"copies": 3},
    ],
    ids=lambda case: next(iter(case)) + str(next(iter(case.values()))),
)
def test_bits_do_not_depend_on_it_whatever_else_a_job_does(run_job: Launcher, case: dict[str, Any]) -> None:
    plain = run(run_job, 1, **case, sharding="none")
    assert_same_bits(plain, run(run_job, 3, **case))


@pytest.mark.on_cuda_too
def test_a_gradient_that_is_not_finite_makes_every_worker_skip_the_update(run_job: Launcher) -> None:
    case = {"scaler": True, "settings": {"lr": 0.01}}
    plain, sharded = run(run_job, 1, **case, sharding="none"), run(run_job, 4, **case)
    assert float(sharded.out().split()[0]) < 2.0**126, "no step was skipped"
    assert plain.out() == sharded.out()


@pytest.mark.on_cuda_too(some=[])
@pytest.mark.parametrize(("one", "other"), [("state", "state"), ("state", "none"), ("none", "state")])
def test_stopped_and_resumed_on_other_devices(run_job: Launcher, tmp_path: Path, one: str, other: str) -> None:
    path = str(tmp_path / "checkpoint.pt")
    plain = run(run_job, 1, sharding="none")
    run(run_job, 3, sharding=one, save=path, stop_after=2)
    resumed = run(run_job, 4, sharding=other, load=path)
    assert resumed.digest == plain.digest


def test_a_checkpoint_in_parts_holds_the_state_of_a_job_that_is_not_sharded(run_job: Launcher, tmp_path: Path) -> None:
    paths = {sharding: tmp_path / f"{sharding}.pt" for sharding in ("none", "state")}
    for sharding, path in paths.items():
        run(run_job, 3, sharding=sharding, save=str(path), stop_after=2)
    plain, sharded = (with_paths(checkpoint.read(path), path) for path in paths.values())
    assert len(sharded[BLOCKS]) == 3
    parameters = {name: nn.Parameter(value) for name, value in sharded["parameters"].items()}
    (groups,), (empty,) = sharded["settings"]["groups"], sharded["optimizers"]
    whole = SavedBlocks(sharded[BLOCKS]).state_dict(empty, groups, parameters)
    for (name, value), (other_name, other) in zip(
        flattened(plain["optimizers"], ""), flattened([whole], ""), strict=True
    ):
        assert name == other_name
        assert described(value) == described(other), name
    parts = parts_folder(paths["state"])
    assert set(tmp_path.iterdir()) == {*paths.values(), parts}
    assert {str(part) for part in parts.iterdir()} == set(sharded[BLOCKS])
    written = [[Block(*b[:3]) for b in checkpoint.read(Path(part))["blocks"]] for part in sharded[BLOCKS]]
    assert all(written), "each worker has written a part"
    assert len({block for blocks in written for block in blocks}) == sum(map(len, written)), "no block twice"
