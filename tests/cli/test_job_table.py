"""Tables that fit 80 columns, and words for what there is to know of a job."""

from __future__ import annotations

import io
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_jobs import run_verb
from virtualflow.cli.job_table import duration, fact_table, job_table, speed_table, views_of
from virtualflow.cli.screen import screen
from virtualflow.core.job_state import JobState
from virtualflow.core.job_view import JobView
from virtualflow.job.folder import JobFolder, JobSpec
from virtualflow.job.status import JobStatus


def a_view(**changes: object) -> JobView:
    facts: dict[str, object] = {
        "id": "1117-192843-ab12", "name": "train", "script": "/home/me/work/train.py", "state": "RUNNING",
        "devices": ["0", "1"], "step": 50, "steps": 200, "loss": 0.25, "examples_per_second": 1234.5,
        "eta_seconds": 3725.0, "priority": 1.0, "demand": 4, "want": 4, "min": 1, "cap": None,
        "virtual_nodes": 8, "mapping": {"0": [0, 1, 2, 3], "1": [4, 5, 6, 7]}, "queued_seconds": 5.0,
        "run_seconds": 61.0, "resizes": 2, "failures": 0, "reason": "it could use 2 more devices",
        "submitted": 1.8e9, "started": 1.8e9, "ended": None,
    }  # fmt: skip
    (view,) = views_of([facts | changes])
    return view


def printed(*jobs: JobView, width: int, wide: bool = False) -> list[str]:
    out = io.StringIO()
    screen(file=out, width=width).print(job_table(jobs, wide=wide))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("state", list(JobState))
def test_a_job_is_one_line_of_80_columns(state: str) -> None:
    lines = printed(a_view(state=state), width=80)
    assert max(map(len, lines)) <= 80
    head = next(line for line in lines if "NAME" in line)
    assert head.split() == ["NAME", "SCRIPT", "STATE", "DEVICES", "PROGRESS", "ETA", "ID"]
    (row,) = (line for line in lines if "1117-192843-ab12" in line and state in line)
    assert row.split() == ["train", "train.py", state, "2/4", "25%", "1:02:05", "1117-192843-ab12"]
    assert "train (1117-192843-ab12): it could use 2 more devices" in " ".join(lines)


def test_long_names_are_folded_and_nothing_is_cut() -> None:
    name = "a-rather-long-name-for-a-job-that-somebody-gave-it"
    lines = printed(a_view(name=name, script=f"{name}.py", state="CANCELLED"), width=80)
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)
    assert any("CANCELLED" in line and "1117-192843-ab12" in line for line in lines)


def test_without_jobs_the_table_is_a_line_that_says_how_to_start_one() -> None:
    assert printed(width=80) == ["no jobs yet: `vf run` starts one here, `vf submit` gives one to a manager"]


def test_wide_has_every_column_in_one_line() -> None:
    lines = printed(a_view(), width=200, wide=True)
    (row,) = (line for line in lines if "1117-192843-ab12" in line)
    for cell in ("0:4 1:4", "50/200", "0.2500", "1234", "0:05", "1:01", "2 more devices"):
        assert cell in row


def facts_printed(facts: dict[str, Any]) -> str:
    out = io.StringIO()
    screen(file=out, width=80).print(fact_table(facts))
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def test_facts_show_times_as_times() -> None:
    text = facts_printed(a_view().to_json())
    assert re.search(r"submitted +20\d\d-\d\d-\d\d \d\d:\d\d:\d\d", text)
    assert re.search(r"run +1:01", text)
    assert "1800000000" not in text
    assert "1.8e+09" not in text


def test_facts_show_metrics_by_name_and_what_each_device_uses() -> None:
    use = {"0": {"cpu_cores": 0.98, "memory_bytes": 412 << 20, "accelerator_bytes": 3 << 30}}
    facts = a_view(metrics={"accuracy": 0.91, "recall": 0.5}).to_json() | {"use": use}
    text = facts_printed(facts)
    assert re.search(r"metrics +accuracy=0.91 recall=0.5\n", text)
    assert re.search(r"on 0 +virtual nodes 0 1 2 3 · 98% CPU · 412 MB · GPU 3 GB\n", text)
    assert re.search(r"on 1 +virtual nodes 4 5 6 7\n", text)
    assert "{" not in text


def test_facts_that_are_empty_are_left_out() -> None:
    text = facts_printed(a_view(mapping={}).to_json() | {"use": {}})
    assert not re.search(r"^use ", text, re.M)
    assert "metrics" not in text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (65, "1:05"), (3600, "1:00:00"), (86400 * 3 + 3605, "3d 1:00:05")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.fixture
def two_jobs(vf_home: Path, tmp_path: Path) -> Path:
    script = tmp_path / "train.py"
    script.write_text("")
    for job_id, name in (("1117-aaaa", "first"), ("1117-bbbb", "second")):
        folder = JobFolder(vf_home / "jobs" / job_id)
        folder.create(JobSpec.of(job_id, str(script), (), ("0",), name=name))
        folder.write_state(JobStatus(JobState.DONE))
    return vf_home


@pytest.mark.usefixtures("two_jobs")
def test_verbs_take_names_and_beginnings_of_ids() -> None:
    for text in ("second", "1117-b", "1117-bbbb"):
        code, words = run_verb("status", text)
        assert (code, "1117-bbbb" in words, "1117-aaaa" in words) == (0, True, False), words
    assert run_verb("logs", "first") == (0, "")
    code, words = run_verb("status", "1117")
    assert (code, "fits 2 jobs: 1117-aaaa, 1117-bbbb" in words) == (2, True)


def test_clean_asks_and_keeps_what_is_newer_than_a_week(two_jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def jobs() -> list[str]:
        return sorted(path.name for path in (two_jobs / "jobs").iterdir())

    assert "nothing to remove" in run_verb("clean")[1]
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    code, words = run_verb("clean", "--older-than", "0")
    assert (code, "Remove 2 jobs" in words, jobs()) == (0, True, ["1117-aaaa", "1117-bbbb"]), words
    week_ago = time.time() - 8 * 86400
    os.utime(two_jobs / "jobs" / "1117-aaaa" / "state.json", (week_ago, week_ago))
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert run_verb("clean")[0] == 0
    assert jobs() == ["1117-bbbb"]


def test_clean_asks_for_one_job_too_whatever_its_age(two_jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for answer, left in (("n\n", ["1117-aaaa", "1117-bbbb"]), ("y\n", ["1117-bbbb"])):
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        code, words = run_verb("clean", "1117-aaaa")
        assert (code, "Remove 1 job," in words) == (0, True), words
        assert sorted(path.name for path in (two_jobs / "jobs").iterdir()) == left
    assert run_verb("clean", "--older-than", "0", "--yes")[0] == 0
    assert run_verb("clean", "--older-than", "0")[1] == "nothing to remove: no job has ended.\n"


def test_the_speed_table_shows_what_was_measured_beside_what_was_predicted() -> None:
    seen = {"devices": {"P100": 2}, "waves": {"P100": 4}, "steps": 40, "step_seconds": 0.5}
    speed = {
        "source": "its own steps",
        "unseen": ["K80"],
        "measured": [seen | {"predicted_step_seconds": 0.512}],
        "predicted": [{"devices": {"P100": 2, "K80": 1}, "step_seconds": 0.41, "deviation_seconds": 0.2}],
    }
    out = io.StringIO()
    screen(file=out, width=80).print(speed_table(speed))
    text = out.getvalue()
    assert "from its own steps; of K80 nothing is known" in text
    assert re.search(r"P100:2, at most 4/P100 .* 40 steps +0.5 s +0.512 s", text)
    assert re.search(r"P100:2,K80:1 +0.41 ± 0.2 s", text)
