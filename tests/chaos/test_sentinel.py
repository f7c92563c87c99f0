"""Bits flip on a worker: a job with a sentinel finds it before the step is committed, and ends with the same bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Finished, Launcher
from virtualflow.events import CorruptionFound

JOB = Path(__file__).with_name("flip_job.py")


def run(launch: Launcher, folder: Path, devices: int = 4, **options: Any) -> Finished:
    folder.mkdir(exist_ok=True)
    return launch(JOB, devices, [json.dumps({"folder": str(folder), **options})])


def last_line(finished: Finished) -> str:
    assert finished.outcome.code == 0, finished.failure + finished.err()
    (line,) = [line for device in "0123456" for line in finished.out(device).splitlines()]
    return line


def found(finished: Finished) -> list[tuple[int, str, str, str]]:
    events = [event for event in finished.events if isinstance(event, CorruptionFound)]
    return [(event.step, event.device, event.what, event.action) for event in events]


@pytest.fixture(scope="module")
def calm(run_on_cpus: Launcher, tmp_path_factory: pytest.TempPathFactory) -> str:
    return last_line(run(run_on_cpus, tmp_path_factory.mktemp("calm"), 1, rate=0))


@pytest.mark.parametrize(
    ("points", "verdicts"),
    [
        (
            ("activations", "sums", "parameters"),
            [(4, "4", "virtual node", "drained"), (8, "3", "sums", "drained"), (12, "2", "state", "set right")],
        ),
        (  # optimizer state is used in the update: it is seen when replicas differ after it
            ("gradients", "received buckets", "optimizer state"),
            [
                (4, "4", "virtual node", "drained"),
                (8, "3", "received sums", "drained"),
                (13, "2", "state", "set right"),
            ],
        ),
    ],
)
def test_a_flipped_bit_is_found_before_its_step_is_committed(
    run_on_cpus: Launcher, tmp_path: Path, calm: str, points: tuple[str, ...], verdicts: list[tuple[int, str, str, str]]
) -> None:
    flips = [[4 * number, point, 5 - number, 3] for number, point in enumerate(points, 1)]
    finished = run(run_on_cpus, tmp_path / "flips", devices=5, flips=flips)
    assert last_line(finished) == calm
    assert found(finished) == verdicts


def test_a_device_that_always_computes_wrongly_is_named_and_the_others_go_on(
    run_on_cpus: Launcher, tmp_path: Path, calm: str
) -> None:
    finished = run(run_on_cpus, tmp_path / "flips", lies={"1": "gradients"}, rate="1/4")
    assert last_line(finished) != ""
    assert [entry[1:] for entry in found(finished)] == [("1", "virtual node", "drained")]
    assert "sentinel: step" in finished.err()
    assert finished.changes[-1].left == ["1"]


def test_a_lead_that_computes_wrongly_leaves_too(run_on_cpus: Launcher, tmp_path: Path, calm: str) -> None:
    finished = run(run_on_cpus, tmp_path / "flips", devices=3, lies={"0": "activations"})
    assert last_line(finished) == calm
    assert [entry[1:] for entry in found(finished)] == [("0", "virtual node", "drained")]


def test_of_two_devices_the_one_that_contradicts_itself_is_wrong(
    run_on_cpus: Launcher, tmp_path: Path, calm: str
) -> None:
    finished = run(run_on_cpus, tmp_path / "flips", devices=2, flips=[[7, "gradients", 1, 3]])
    assert last_line(finished) == calm
    assert found(finished) == [(7, "1", "virtual node", "drained")]


def test_two_devices_that_can_not_be_told_apart_commit_nothing(run_on_cpus: Launcher, tmp_path: Path) -> None:
    finished = run(run_on_cpus, tmp_path / "flips", devices=2, flips=[[7, "parameters", 1, 3]])
    assert finished.outcome.code == 1
    assert "devices 0 and 1 hold different parameters" in finished.failure
    assert finished.steps[-1].step == 6
