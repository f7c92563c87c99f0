"""A job as its folder shows it. The clock is an argument, and nothing is read twice."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from virtualflow.core.job_state import JobState
from virtualflow.events import STREAM, EpochStarted, Regrouped, RunStarted, StepDone, StreamEvent
from virtualflow.job.folder import JobFolder, JobSpec
from virtualflow.job.folder_view import FolderView
from virtualflow.job.status import JobStatus, WorkerStatus

NAMES = {RunStarted: "run started", StepDone: "step", Regrouped: "regrouped", EpochStarted: "epoch started"}


def step(number: int, loss: float = 1.0) -> StreamEvent:
    return StepDone(number, 0, loss, "", None, "", "", 8, 0.5, 1)


class AJob:
    """A folder that a test writes as a coordinator and a lead worker would."""

    def __init__(self, path: Path) -> None:
        self.folder = JobFolder(path)
        self.folder.make()
        self.folder.change(JobSpec.of("a", "/home/ada/train.py", (), ("0", "1"), name="mine"))

    def events(self, *timed: tuple[float, StreamEvent]) -> None:
        lines = [{"event": NAMES[type(event)], "time": at, **asdict(event)} for at, event in timed]
        with (self.folder.path / STREAM).open("a") as stream:
            stream.writelines(json.dumps(line) + "\n" for line in lines)

    def state(self, state: str, *devices: str) -> None:
        workers = tuple(WorkerStatus(device, virtual_nodes=(place,)) for place, device in enumerate(devices))
        self.folder.write_state(JobStatus(JobState(state), virtual_nodes=2, workers=workers, resizes=1))


@pytest.fixture
def job(tmp_path: Path) -> AJob:
    return AJob(tmp_path / "a")


def test_a_running_job_has_a_speed_and_a_time_to_its_end(job: AJob) -> None:
    with job.folder.locked():
        job.state("RUNNING", "0", "1")
        job.events((10.0, RunStarted({}, ["0", "1"], ["0", "1"], 1)), (11.0, EpochStarted(0, 2, 10, 0)))
        job.events(*((12.0 + number, step(number)) for number in range(4)))
        view, _ = FolderView(job.folder).look(now=20.0)
    assert (view.name, view.script, view.state) == ("mine", "/home/ada/train.py", JobState.RUNNING)
    assert (view.step, view.steps, view.part_done, view.eta_seconds) == (4, 20, 0.2, 8.0)
    assert (view.devices, view.mapping, view.resizes) == (["0", "1"], {"0": [0], "1": [1]}, 1)
    assert (view.started, view.ended, view.run_seconds, view.examples_per_second) == (10.0, None, 10.0, 16.0)


def test_the_time_between_two_runs_is_no_run_time_and_what_has_ended_has_no_speed(job: AJob) -> None:
    start = RunStarted({}, ["0"], ["0"], 1)
    job.events((10.0, start), (15.0, step(0)), (100.0, start), (107.0, step(1, float("nan"))))
    job.state("DONE")
    view, _ = FolderView(job.folder).look(now=9999.0)
    assert (view.run_seconds, view.started, view.ended) == (12.0, 10.0, 107.0)
    assert (view.step, view.loss, view.examples_per_second, view.eta_seconds) == (2, None, None, None)
    json.dumps(view.to_json(), allow_nan=False)


def test_a_second_look_reads_only_what_is_new(job: AJob) -> None:
    job.state("DONE")
    job.events((10.0, RunStarted({}, ["0"], ["0"], 1)), (11.0, step(0)))
    status = FolderView(job.folder)
    assert status.look(now=20.0)[0].step == 1
    with (job.folder.path / STREAM).open("r+b") as stream:  # whoever reads it again finds nothing
        stream.write(b"\0" * 50)
    job.events((12.0, step(1)))
    assert status.look(now=20.0)[0].step == 2
    assert status.look(now=20.0)[0].started == 10.0


def test_a_state_of_another_version_is_unknown_and_shown(job: AJob) -> None:
    (job.folder.path / "state.json").write_text('{"state": "DREAMING", "workers": [], "wanted": [], "dreams": 3}')
    view, _ = FolderView(job.folder).look(now=20.0)
    assert (view.state, view.want) == (JobState.UNKNOWN, 2)


def test_a_job_whose_description_is_damaged_is_shown_by_its_id(job: AJob) -> None:
    job.state("FAILED")
    (job.folder.path / "job.json").write_bytes(b"{")
    view, _ = FolderView(job.folder).look(now=20.0)
    assert (view.id, view.name, view.state) == ("a", "", JobState.FAILED)


def test_a_job_in_stages_shows_who_runs_and_holds_what_at_its_start_and_after_each_change(job: AJob) -> None:
    with job.folder.locked():
        job.state("RUNNING", "0", "1")
        job.events((10.0, RunStarted({}, ["0", "1"], [], 3, [["0", "0"], ["0", "1"]], [["1"], []])))
        view, status = FolderView(job.folder).look(now=11.0)
        assert (view.stages, view.mapping) == (2, {"0": [0, 1], "1": [1]})
        assert [worker.stages for worker in status.workers] == [(0, 1), (0, 1)]
        job.state("RUNNING", "1")
        job.events((12.0, Regrouped(1, 3, "loss", ["1"], [], ["0"], [], {}, [["1", "1"], ["1", "1"]], [[], []])))
        view, status = FolderView(job.folder).look(now=13.0)
    assert view.mapping == {"1": [0, 1]}
    assert [worker.stages for worker in status.workers] == [(0, 1)]
