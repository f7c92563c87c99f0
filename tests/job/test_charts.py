"""What charts show of a job that was stopped and resumed: a gap, not work."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from virtualflow.cli.timeline import WINDOW, _periods, _runs, _stops, _throughput, change_labels
from virtualflow.events import STREAM, Regrouped, RunStarted, StepDone, StreamEvent, read_timed_events
from virtualflow.job.folder_view import device_periods
from virtualflow.job.history import MAX_SAMPLES, Watch
from virtualflow.manager.api.views import series

STEPS = WINDOW + 5
PAUSE = 1000.0


def run(begin: float, first: int, devices: list[str]) -> list[tuple[float, StreamEvent]]:
    """A step of 8 examples every second."""
    steps = range(first, first + STEPS)
    events: list[tuple[float, StreamEvent]] = [(begin, RunStarted({}, devices, devices, 1))]
    return events + [
        (begin + 1 + place, StepDone(step, 0, 1.0, "", None, "", "", 8, 0.5, 1)) for place, step in enumerate(steps)
    ]


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    """A job on two devices that ran from 0 to 25 s, and again, on one more, from 1025 s on."""
    names = {RunStarted: "run started", StepDone: "step", Regrouped: "regrouped"}
    first = run(0.0, 0, ["0", "1"])
    second = run(first[-1][0] + PAUSE, STEPS, ["0", "1", "2"])
    lines = [{"event": names[type(event)], "time": at, **asdict(event)} for at, event in (*first, *second)]
    path = tmp_path / STREAM
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_timeline_has_a_gap_where_the_job_was_stopped(stream: Path) -> None:
    runs = _runs(list(read_timed_events(stream)))
    periods = [period for each in runs for period in _periods(each)]
    assert [(period.start, period.end) for period in periods] == [(0.0, STEPS), (STEPS + PAUSE, 2 * STEPS + PAUSE)]
    assert _stops(periods) == [(STEPS, STEPS + PAUSE)]  # drawn as paused
    for each in runs:
        assert {speed for _, speed in _throughput(each)} == {8.0}  # no window reaches over the gap


def test_changes_that_follow_each_other_at_once_share_a_label() -> None:
    def change(cause: str, pause_ms: float) -> Regrouped:
        return Regrouped(1, 1, cause, ["0"], [], [], ["0"], {"form group": pause_ms})

    changes = [(10.0, change("resize", 53.0)), (50.0, change("loss", 109.0)), (50.5, change("resize", 82.0))]
    assert change_labels(changes, 2.0) == [
        (10.0, "tab:gray", "resize 53 ms"),
        (50.0, "tab:red", "loss 109 ms, resize 82 ms"),
    ]
    assert len(change_labels(changes, 0.1)) == 3


def test_the_dashboards_curves_have_a_gap_there(stream: Path) -> None:
    watch = Watch(stream)
    watch.read()
    drawn = series(watch)
    (gap,) = (place for place, speed in enumerate(drawn["examples_per_second"]) if speed is None)
    assert (drawn["time"][gap], drawn["loss"][gap], drawn["devices"][gap]) == (STEPS, None, 0)
    assert drawn["time"] == sorted(drawn["time"])
    assert (drawn["devices"][gap - 1], drawn["devices"][gap + 1]) == (2, 3)


def test_a_gap_is_kept_when_samples_are_dropped(stream: Path) -> None:
    watch = Watch(stream)
    watch.read()
    for step in range(3 * MAX_SAMPLES):
        watch.add(5000.0 + step, StepDone(step, 0, 1.0, "", None, "", "", 8, 0.5, 1))
    assert len(watch.samples) <= 2 * MAX_SAMPLES
    assert [sample.time for sample in watch.samples if sample.examples_per_second is None] == [STEPS]


@pytest.mark.parametrize("ended", [True, False])
def test_the_chart_of_one_job_has_a_gap_there(stream: Path, ended: bool) -> None:
    watch = Watch(stream)
    watch.read()
    begun = STEPS + PAUSE - 3  # then the resumed job was launched
    held = list(device_periods(watch, begun, ["0", "1", "2"], ended=ended))
    last = 2 * STEPS + PAUSE if ended else None
    assert held == [(0.0, STEPS, ["0", "1"]), (begun, last, ["0", "1", "2"])]


def test_a_job_that_is_just_being_resumed_did_nothing_meanwhile(stream: Path) -> None:
    watch = Watch(stream)
    watch.read()
    held = list(device_periods(watch, 9999.0, ["0"], ended=False))
    assert held[-2:] == [(STEPS + PAUSE, 2 * STEPS + PAUSE, ["0", "1", "2"]), (9999.0, None, ["0"])]


def test_a_new_job_has_its_devices_from_the_start(tmp_path: Path) -> None:
    assert list(device_periods(Watch(tmp_path / STREAM), 5.0, ["0"], ended=False)) == [(5.0, None, ["0"])]
