"""vf submit --sweep and vf sweep: a job for each combination, and the results by parameter."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from tests.manager.worlds import Starts, World, answering, launched, starts, vf, world
from virtualflow.cli.main import app
from virtualflow.cli.sweeps import arguments_for, combinations, draw
from virtualflow.core.job_state import JobState
from virtualflow.errors import VirtualFlowError
from virtualflow.events import STREAM, RunStarted, StepDone
from virtualflow.events.event_types import Evaluated, encode
from virtualflow.job.status import JobStatus
from virtualflow.manager.manager import Manager

__all__ = ["starts", "world"]


@pytest.fixture
def manager(world: World, starts: Starts) -> Iterator[Manager]:
    manager = world.manager("8")
    with answering(manager):
        yield manager


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("print('hello')\n")
    return path


def refused(*words: str | Path) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert isinstance(result.exception, VirtualFlowError), result.output
    return str(result.exception)


def train(manager: Manager, starts: Starts, job_id: str, loss: float, accuracy: float) -> None:
    """A job makes a step and is done."""
    manager.tick()
    folder = manager.fleet.folder(job_id)
    lines = [
        encode(RunStarted({}, ["cpu:0"], ["cpu:0"], 1), 1.0),
        encode(StepDone(0, 0, loss, "", None, "", "", 32, 1.0, 1), 2.0),
        encode(Evaluated(1, accuracy, "accuracy"), 3.0),
    ]
    with launched(manager, starts):
        (folder.path / STREAM).write_bytes(b"".join(line + b"\n" for line in lines))
        manager.tick()
    folder.write_state(JobStatus(JobState.DONE))
    starts.processes[[made for made, _ in starts.made].index(job_id)].end(0)


def test_every_combination_is_a_job_with_its_parameters_as_arguments(manager: Manager, script: Path) -> None:
    text = vf("submit", "--sweep", "lr=0.1,0.3", "--sweep", "batch_size=64,128", script, "--epochs", "3")
    name = re.fullmatch(r"sweep (train-[0-9a-f]{4}): 4 jobs\n", text)
    assert name is not None
    records = manager.records.all()
    assert [record.name for record in records] == ["train-1", "train-2", "train-3", "train-4"]
    assert {record.description.sweep for record in records} == {name[1]}
    assert records[1].description.parameters == {"lr": "0.1", "batch_size": "128"}
    assert records[1].description.arguments == ("--epochs", "3", "--lr", "0.1", "--batch_size", "128")


def test_a_parameter_takes_the_place_that_the_arguments_have_for_it() -> None:
    assert arguments_for(["optim.lr={lr}", "x"], {"lr": "0.1", "seed": "2"}) == ["optim.lr=0.1", "x", "--seed", "2"]


def test_a_value_that_looks_like_a_place_stays_as_it_is() -> None:
    assert arguments_for(["{a} {b}"], {"a": "{b}", "b": "{a}"}) == ["{b} {a}"]


def test_a_file_has_a_row_for_each_job(tmp_path: Path) -> None:
    (tmp_path / "grid.csv").write_text("batch-size, virtual-nodes\n16,2\n\n32,4\n")
    assert combinations([str(tmp_path / "grid.csv"), "seed=0"]) == [
        {"batch-size": "16", "virtual-nodes": "2", "seed": "0"},
        {"batch-size": "32", "virtual-nodes": "4", "seed": "0"},
    ]


def test_what_is_no_sweep_is_refused_before_anything_is_submitted(
    manager: Manager, script: Path, tmp_path: Path
) -> None:
    (tmp_path / "ragged.csv").write_text("lr,seed\n0.1\n")
    (tmp_path / "two names.csv").write_text("lr,seed,lr\n0.1,1,0.2\n")
    (tmp_path / "two rows.csv").write_text("lr,seed\n0.1,1\n0.2,1\n 0.1,1\n")
    for given, reason in (
        ("lr=", "expected NAME=VALUE,VALUE"),
        ("lr=1,1", "gives a value twice"),
        ("9=1", "can't be the name of a parameter"),
        ("nowhere.csv", "or a CSV file; No such file"),
        (str(tmp_path / "ragged.csv"), "line 2: 1 value for 2 names"),
        (str(tmp_path / "two names.csv"), "gives lr twice"),
        (str(tmp_path / "two rows.csv"), "line 4: the same values as before"),
        ("n=" + ",".join(map(str, range(1001))), "makes 1001 jobs"),
    ):
        assert reason in refused("submit", "--sweep", given, script)
    assert "gives lr twice" in refused("submit", "--sweep", "lr=1", "--sweep", "lr=2", script)
    assert "a demand of 9 can't be met" in refused("submit", "--sweep", "lr=1,2", "--demand", "9", script)
    assert not manager.records.all()


def test_the_queue_folds_a_sweep_and_verbs_change_all_of_it(manager: Manager, script: Path) -> None:
    name = json.loads(vf("submit", "--json", "--sweep", "lr=0.1,0.2,0.3", script))["sweep"]
    single = json.loads(vf("submit", "--json", "--name", "alone", script))["id"]
    text = vf("queue")
    assert "3 QUEUED" in text
    assert name in text
    assert not re.search(r"train-2\b", text)
    assert single in text
    assert re.search(r"train-2\b", vf("queue", "--unfold"))
    assert vf("pause", name).count("is paused") == 3
    assert vf("resume", name).count("continues: its state is QUEUED") == 3
    assert vf("priority", name, "2").count("has priority 2") == 3
    assert vf("cancel", name).count("is cancelled") == 3
    assert manager.records[single].state == JobState.QUEUED


def test_results_are_a_table_and_a_picture_by_parameter(
    manager: Manager, starts: Starts, script: Path, tmp_path: Path
) -> None:
    submitted = json.loads(vf("submit", "--json", "--sweep", "lr=0.3,0.1", "--sweep", "seed=0,1", script))
    assert "no job of sweep" in refused("sweep", submitted["sweep"], "--plot", tmp_path / "early.png")
    for place, job_id in enumerate(submitted["ids"]):
        train(manager, starts, job_id, loss=1.0 + place, accuracy=0.5 + place / 10)
    manager.tick()
    rows = json.loads(vf("sweep", submitted["sweep"], "--json"))
    assert [row["results"]["accuracy"] for row in rows] == [0.5, 0.6, 0.7, 0.8]
    assert [row["state"] for row in rows] == ["DONE"] * 4
    assert rows[0]["results"]["loss"] == 1.0
    text = vf("sweep", submitted["sweep"], "--plot", tmp_path / "all.png")
    lines = [line for line in text.splitlines() if line.strip()]
    assert lines[0].split() == ["lr", "seed", "STATE", "STEP", "loss", "accuracy", "ID"]
    assert [line.split()[:2] for line in lines[2:6]] == [["0.1", "0"], ["0.1", "1"], ["0.3", "0"], ["0.3", "1"]]
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")
    assert "has loss, accuracy" in refused("sweep", submitted["sweep"], "--plot", tmp_path / "x.png", "--metric", "f1")
    assert "has lr, seed" in refused("sweep", submitted["sweep"], "--plot", tmp_path / "x.png", "--along", "decay")


def test_the_next_manager_knows_a_sweep(world: World, manager: Manager, script: Path) -> None:
    name = json.loads(vf("submit", "--json", "--sweep", "lr=0.1,0.2", script))["sweep"]
    with answering(world.manager("8")):
        assert [row["parameters"]["lr"] for row in json.loads(vf("sweep", name, "--json"))] == ["0.1", "0.2"]
        assert "has no sweep 'train'" in refused("sweep", "train")


@pytest.mark.parametrize(
    ("sweep", "lines"),
    [
        ([{"batch": "8", "nodes": "1"}, {"batch": "16", "nodes": "2"}], 1),  # nodes follow from the batch
        ([{"batch": "8", "lr": "1"}, {"batch": "8", "lr": "2"}, {"batch": "16", "lr": "1"}], 2),
    ],
)
def test_a_line_is_drawn_for_each_combination_of_what_varies_by_itself(sweep: list[dict[str, str]], lines: int) -> None:
    axes = Figure().add_subplot()
    draw(axes, [{"parameters": given, "results": {"loss": 1.0}} for given in sweep], "loss", "batch")
    assert len(axes.lines) == lines
