"""A manager's job that runs without a record is taken in; jobs of ``vf run``, and those that stand still, are not."""

from __future__ import annotations

from pathlib import Path

from virtualflow.core.job_state import JobState
from virtualflow.job.folder import JobFolder, JobSpec
from virtualflow.manager.orphans import RunningOrphans


def make_job(home: Path, job_id: str, *, managed: bool) -> JobFolder:
    script = home.parent / "train.py"
    script.write_text("")
    folder = JobFolder(home / "jobs" / job_id)
    folder.create(JobSpec.of(job_id, str(script), (), ("0",), managed=managed))
    return folder


def test_a_managed_job_that_runs_without_a_record_is_found(vf_home: Path) -> None:
    folder = make_job(vf_home, "1118-aaaa", managed=True)
    with folder.locked():
        (record,) = RunningOrphans().find([], now=5.0)
    assert (record.id, record.state, record.launched) == ("1118-aaaa", JobState.RUNNING, 5.0)


def test_a_recorded_job_is_none(vf_home: Path) -> None:
    with make_job(vf_home, "1118-aaaa", managed=True).locked():
        assert RunningOrphans().find(["1118-aaaa"], now=5.0) == []


def test_a_job_that_stands_still_is_left_for_its_owner_to_decide(vf_home: Path) -> None:
    make_job(vf_home, "1118-aaaa", managed=True)
    assert RunningOrphans().find([], now=5.0) == []


def test_a_job_of_vf_run_is_left_alone(vf_home: Path) -> None:
    with make_job(vf_home, "1118-aaaa", managed=False).locked():
        assert RunningOrphans().find([], now=5.0) == []
