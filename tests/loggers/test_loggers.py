"""A job's numbers in other tools: one run for a job, whoever leads it."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.job.driven import Driven, after_a_loss, to
from tests.train.small import make, mse, regression, train
from virtualflow.backends.local import LocalBackend
from virtualflow.events import Evaluated, EventLog, RunStarted, StepDone
from virtualflow.job.coordinator import Coordinator
from virtualflow.loggers import RunLogger
from virtualflow.loggers.scalars_of_events import scalars

pytestmark = pytest.mark.timeout(400)  # a busy machine decides nothing


class Recorder:
    """A tool that keeps what it gets."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.closed = 0

    def open(self, run: str, facts: dict[str, Any]) -> None:
        self.runs.append(run)

    def log(self, step: int, values: dict[str, float], time: float) -> None:
        self.logged.append((step, values))

    def close(self) -> None:
        self.closed += 1


class Broken(Recorder):
    def log(self, step: int, values: dict[str, float], time: float) -> None:
        raise OSError("no network")


def step(number: int, loss: float = 0.5, **more: Any) -> StepDone:
    return StepDone(number, 0, loss, "", None, "", "", 8, 2.0, 1, **more)


def test_steps_and_evaluations_are_logged_by_name() -> None:
    tool = Recorder()
    trainer = make(loss_fn=lambda m, b: (mse(m, b), {"n": len(b[0])}), loggers=[tool])
    losses = train(trainer, regression())
    trainer.evaluate(regression(), lambda m, b: (mse(m, b), 1), name="error")
    steps = [(step, values) for step, values in tool.logged if "loss" in values]
    assert [(step, values["loss"], values["n"]) for step, values in steps] == [(i, losses[i], 8) for i in range(5)]
    assert list(tool.logged[-1][1]) == ["error"]
    assert len(tool.runs) == 1


def test_a_phase_has_its_own_loss_and_numbers_that_are_not_finite_are_left_out() -> None:
    assert scalars(step(3, 0.25, phase="d", metrics={"a": float("nan")})) == (
        3,
        {"d loss": 0.25, "examples per second": 4.0},
    )
    assert scalars(Evaluated(4, float("inf"), "x")) == (4, {})


def test_a_tool_that_fails_is_left_alone_and_ends_no_job(caplog: pytest.LogCaptureFixture) -> None:
    broken, fine = Broken(), Recorder()
    train(make(loggers=[broken, fine]), regression())
    assert "Broken is left out from here on: no network" in caplog.text
    assert caplog.text.count("left out") == 1
    assert len(fine.logged) == 5


def test_a_new_lead_goes_on_with_the_run_and_repeats_the_last_step(tmp_path: Path) -> None:
    stream = tmp_path / "events.jsonl"
    EventLog(stream, lambda: True).write(step(6))
    tool = Recorder()
    log = EventLog(stream, lambda: True, [RunLogger(tool, "job", stream)])
    log.write(step(7))
    assert tool.runs == ["job"]
    assert [number for number, _ in tool.logged] == [6, 7]


def test_a_new_lead_repeats_the_last_twenty_and_all_of_the_last_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = tmp_path / "events.jsonl"
    log = EventLog(stream, lambda: True)
    for number in range(60):
        seconds = 100.0 * number if number < 30 else 3000.0 + number / 1000
        monkeypatch.setattr("virtualflow.events.event_log.time.time", lambda seconds=seconds: seconds)
        log.write(step(number) if number % 10 else Evaluated(number, 0.5, "x"))
    for recent, expected in ((60, 30), (35, 15)):
        monkeypatch.setattr("virtualflow.loggers.adapter.MOST_REPEATED", recent - 30)
        monkeypatch.setattr("virtualflow.loggers.adapter.REPEATED", 15)
        tool = Recorder()
        RunLogger(tool, "job", stream)(0.0, RunStarted({}, [], [], 1))
        assert [number for number, _ in tool.logged] == list(range(60 - expected, 60))


class Unclosable(Recorder):
    def close(self) -> None:
        raise OSError("too late")


def test_a_tool_is_closed_before_what_it_does_itself_at_the_end(tmp_path: Path) -> None:
    """wandb ends its service then, and has nothing left to close."""
    script = tmp_path / "script.py"
    script.write_text(ORDERED)
    (tmp_path / "empty").touch()
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=100)
    assert ended.stdout.split() == ["closed", "own"]


ORDERED = """
import atexit, pathlib
from virtualflow.events import RunStarted
from virtualflow.loggers import RunLogger

class Tool:
    def open(self, run, facts):
        atexit.register(print, "own")
    def close(self):
        print("closed")

RunLogger(Tool(), "job", pathlib.Path(__file__).with_name("empty"))(0.0, RunStarted({}, [], [], 1))
"""


def test_a_tool_that_can_not_be_closed_ends_no_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "events.jsonl").touch()
    logger = RunLogger(Unclosable(), "job", tmp_path / "events.jsonl")
    logger(0.0, step(1))
    logger.close()
    assert "Unclosable could not be closed: too late" in caplog.text


def test_a_callback_sees_every_step() -> None:
    seen: list[tuple[int, float]] = []
    trainer = make(on_step=lambda trainer, loss: seen.append((trainer.global_step, loss)))
    losses = train(trainer, regression())
    assert seen == list(enumerate(losses, start=1))


SCRIPT = """
import virtualflow as vf
from tests.train.small import make, mlp, regression
from tests.train.small import mse

vf.seed(0)
trainer = make(mlp(), lambda m, b: (mse(m, b), {"n": len(b[0])}), loggers=[vf.loggers.TensorBoard(folder / "runs")])
for _ in trainer.epochs(6):
    for batch in trainer.batches(regression()):
        trainer.step(batch)
        pace(trainer)
"""


def read_scalars(folder: Path) -> dict[int, float]:
    from tensorboardX.proto.event_pb2 import Event  # type: ignore[import-untyped]

    values: dict[int, float] = {}
    for file in folder.glob("events.*"):
        data, at = file.read_bytes(), 0
        while at < len(data):
            length = int.from_bytes(data[at : at + 8], "little")
            event = Event()
            event.ParseFromString(data[at + 12 : at + 12 + length])
            at += length + 16
            for value in event.summary.value:
                if value.tag == "n":
                    values[event.step] = value.simple_value
    return values


def kill_the_lead(coordinator: Coordinator) -> None:
    os.kill(coordinator.status().workers[0].pid, signal.SIGKILL)


def test_tensorboard_has_every_step_once_through_the_death_of_the_lead(backend: LocalBackend, tmp_path: Path) -> None:
    driven = Driven(backend, tmp_path, SCRIPT)
    finished = driven.run(2, [(4, kill_the_lead), (9, after_a_loss(to(2)))])
    assert finished.outcome.code == 0, finished.failure
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name == "job"
    assert read_scalars(run) == dict.fromkeys(range(30), 8.0)


def wandb_steps(file: Path) -> list[int]:
    """The steps in what an offline run has written: records in blocks, as LevelDB writes them."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, record, steps = file.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        if (left := 2**15 - at % 2**15) < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            items = Record.FromString(record).history.item
            steps += [json.loads(item.value_json) for item in items if "global_step" in (item.key, *item.nested_key)]
            record = b""
    return steps


def test_wandb_has_one_run_through_the_death_of_the_lead(backend: LocalBackend, tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="needs wandb")
    tool = "vf.loggers.WandB(mode='offline', dir=folder)"
    driven = Driven(backend, tmp_path, SCRIPT.replace('vf.loggers.TensorBoard(folder / "runs")', tool))
    finished = driven.run(2, [(4, kill_the_lead), (9, after_a_loss(to(2)))])
    assert finished.outcome.code == 0, finished.failure
    files = list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert [file.name for file in files] == ["run-job.wandb"] * 2  # a folder for each lead, and one run
    assert {step for file in files for step in wandb_steps(file)} == set(range(30))
    assert not any("left out" in text.decode() for text in finished.printed.text.values())


@pytest.mark.filterwarnings("ignore")  # of its libraries, about each other
def test_mlflow_has_one_run_through_the_death_of_the_lead(backend: LocalBackend, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs mlflow")
    pytest.importorskip("sqlalchemy", reason="needs mlflow, whole")
    tool = "vf.loggers.MLflow(tracking_uri=f'sqlite:///{folder}/runs.db')"
    script = SCRIPT.replace('vf.loggers.TensorBoard(folder / "runs")', tool).replace('"n":', '"n (weight)":')
    finished = Driven(backend, tmp_path, script).run(2, [(4, kill_the_lead), (9, after_a_loss(to(2)))])
    assert finished.outcome.code == 0, finished.failure
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/runs.db")
    experiment = client.get_experiment_by_name("virtualflow")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("job", "FINISHED")
    assert run.data.params["virtual_nodes"] == "4"
    history = client.get_metric_history(run.info.run_id, "n _weight_")
    assert sorted((point.step, point.value) for point in history) == [(step, 8.0) for step in range(30)]
