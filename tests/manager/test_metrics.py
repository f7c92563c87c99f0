"""What Prometheus reads: counters never fall, whatever becomes of the jobs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.manager.worlds import Starts, World, job, launched, starts, world
from virtualflow.core.job_state import JobState
from virtualflow.events import STREAM
from virtualflow.job.status import JobStatus
from virtualflow.manager.api.prometheus import PrometheusMetrics
from virtualflow.manager.api.views import MAX_ENDED, ClusterSource, text_from
from virtualflow.manager.manager import Manager

__all__ = ["starts", "world"]  # fixtures


def regrouped(pause_ms: float) -> str:
    facts = {
        "generation": 1,
        "step": 1,
        "cause": "resize",
        "devices": ["0"],
        "joined": [],
        "left": [],
        "mapping": ["0"],
    }
    return json.dumps({"event": "regrouped", "time": 1.0, **facts, "pause_ms": {"form": pause_ms}}) + "\n"


@pytest.fixture
def manager(world: World) -> Manager:
    return world.manager()


def counts(metrics: PrometheusMetrics) -> dict[str, float]:
    lines = (line.rpartition(" ") for line in metrics.text().decode().splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines if name.startswith("vf_pause_seconds")}


def test_pauses_are_counted_once_and_stay_when_their_job_is_no_longer_shown(manager: Manager, starts: Starts) -> None:
    metrics = PrometheusMetrics(ClusterSource(manager))
    assert counts(metrics)["vf_pause_seconds_count"] == 0
    job_id = manager.submit(job(virtual_nodes=1))
    manager.tick()
    folder = manager.fleet.folder(job_id)
    with launched(manager, starts):
        (folder.path / STREAM).write_text(regrouped(20.0) + regrouped(300.0))
        manager.tick()
        seen = counts(metrics)
        assert seen['vf_pause_seconds_bucket{le="0.025"}'] == 1
        assert seen["vf_pause_seconds_count"] == 2
        assert seen["vf_pause_seconds_sum"] == pytest.approx(0.32)
        assert counts(metrics) == seen  # asked twice, counted once
        with (folder.path / STREAM).open("a") as stream:  # the last one before its end
            stream.write(regrouped(40.0))
        folder.write_state(JobStatus(JobState.DONE))
    starts.processes[0].kill()
    manager.tick()
    assert manager.records[job_id].state == "DONE"
    for _ in range(MAX_ENDED):
        manager.cancel(manager.submit(job()))
    assert job_id not in {each["id"] for each in ClusterSource(manager).state()["jobs"]}
    assert counts(metrics)["vf_pause_seconds_count"] == 3


def test_every_state_has_a_number(manager: Manager) -> None:
    manager.submit(job())
    text = PrometheusMetrics(ClusterSource(manager)).text().decode()
    assert 'vf_jobs{state="QUEUED"} 1.0' in text
    assert 'vf_jobs{state="FAILED"} 0.0' in text
    assert re.search(r"# TYPE vf_pause_seconds histogram", text)


def test_a_long_text_comes_in_pieces_of_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert text_from(path, 0, tail=False) == {"text": "", "offset": 0}
    whole = "".join(f"line {number}: é\n" for number in range(50_000))
    path.write_text(whole)
    read, offset = "", 0
    while (piece := text_from(path, offset, tail=False))["text"]:
        assert "\ufffd" not in piece["text"]
        read, offset = read + piece["text"], piece["offset"]
    assert read == whole
    end = text_from(path, 0, tail=True)
    assert whole.endswith(end["text"][10:])
    assert end["offset"] == path.stat().st_size
    assert text_from(path, end["offset"], tail=True)["text"] == ""
    path.write_text("rotated")
    assert text_from(path, offset, tail=False) == {"text": "rotated", "offset": 7}


def test_a_device_that_a_sentinel_has_caught_is_drained_and_shown(manager: Manager, starts: Starts) -> None:
    job_id = manager.submit(job(virtual_nodes=1))
    manager.tick()
    folder, (device,) = manager.fleet.folder(job_id), manager.records[job_id].devices
    found = {"step": 3, "device": device, "what": "sums", "action": "drained", "node": -1, "text": "it lied."}
    with launched(manager, starts):
        (folder.path / STREAM).write_text(json.dumps({"event": "corruption found", "time": 1.0, **found}) + "\n")
        folder.write_state(JobStatus(JobState.RUNNING, virtual_nodes=1, drained=(device,)))
        manager.tick()
        assert device in manager.scheduler.placement.lost
        (view,) = ClusterSource(manager).state()["jobs"]
        assert view["corruption"] == ["step 3: it lied."]
        assert f'vf_job_corruption{{job="{job_id}"' in PrometheusMetrics(ClusterSource(manager)).text().decode()
        manager.give_back([device])
        manager.tick()  # its owner says that it is mended: what was found before counts no more
        assert device not in manager.scheduler.placement.lost
