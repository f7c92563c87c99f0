"""What ``make chaos`` says: of schedules that hang or fail, too."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.hours import PARTS, outcome_of, parts, report
from tests.chaos.series import Outcome, Series, assert_no_orphans, commit


def test_a_series_goes_on_after_a_failure_and_a_hang_and_reports_all(tmp_path: Path) -> None:
    def schedule(seed: int, folder: Path) -> Counter[str]:
        (folder / "events").write_text("what happened")
        assert seed != 2, "another digest"
        while seed == 3:
            time.sleep(60)
        return Counter(kill=seed)

    series = Series("job", tmp_path / "evidence", limit_seconds=0.5)
    assert [series.run(seed, schedule) for seed in (1, 2, 3, 4)] == [True, False, False, True]
    series.outcome.write(tmp_path / "outcome.json")
    outcome = Outcome.read(tmp_path / "outcome.json")
    assert outcome == series.outcome
    assert (outcome.passed, list(outcome.failed), outcome.counts) == ([1, 4], ["2", "3"], {"kill": 5})
    report = series.report()
    assert f"job: 4 schedules, seeds 1 to 4, commit {commit()}" in report
    assert "2 held, 2 failed; 5 strikes that had an effect" in report
    assert "FAILED seed 2: AssertionError: another digest" in report
    assert "FAILED seed 3: Hung: not through after 0 s" in report
    assert (tmp_path / "evidence" / "job-2" / "events").read_text() == "what happened"
    assert "another digest" in (tmp_path / "evidence" / "job-2" / "why.txt").read_text()
    assert "time.sleep" in (tmp_path / "evidence" / "job-3" / "why.txt").read_text()
    assert not (tmp_path / "evidence" / "job-1").exists()


def test_a_process_that_is_left_behind_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.chaos.series.ORPHAN_SECONDS", 0.1)
    with subprocess.Popen(["sleep", "60"], env={"VF_MARK": "of this test"}, start_new_session=True) as left:
        assert_no_orphans("VF_MARK=of this test", lambda: {left.pid})
        with pytest.raises(AssertionError, match=rf"left behind: {left.pid} .*sleep 60"):
            assert_no_orphans("VF_MARK=of this test")
        left.kill()


def test_series_side_by_side_take_the_time_that_was_asked_for() -> None:
    made = parts(hours=2, lanes=3, seed=7)
    assert {(part.kind, part.on_cuda) for part in made} == set(PARTS)
    assert sum(part.minutes for part in made) == pytest.approx(3 * 120)
    assert made[0].command(Path("o.json"))[1:8] == [
        "-m",
        "tests.chaos",
        "--kind",
        "job",
        "--minutes",
        "102.9",
        "--seed",
    ]


def test_one_report_of_all_series_names_each_failure() -> None:
    outcomes = {
        "job": Outcome([1, 2], {"3": "Hung: not through"}, Counter(kill=4)),
        "fast": Outcome([1], {}, Counter()),
    }
    lines = report(outcomes, minutes=120).splitlines()
    assert lines[0].startswith("4 schedules, commit ")
    assert lines[0].endswith("120 minutes: 3 held, 1 failed; 4 strikes that had an effect")
    assert lines[1:] == ["     2  job", "     1  fast", "     4  kill", "FAILED job, seed 3: Hung: not through"]


def test_a_series_that_hangs_or_fails_as_a_whole_is_in_the_report(tmp_path: Path) -> None:
    kept = tmp_path / "outcome.json"
    hung = outcome_of([sys.executable, "-c", "import time; time.sleep(60)"], kept, limit_seconds=0.5)
    assert "hung" in hung.failed["none"]
    assert "code 3" in outcome_of([sys.executable, "-c", "raise SystemExit(3)"], kept, limit_seconds=60).failed["none"]
    Outcome([1], {}, Counter(kill=1)).write(kept)
    assert outcome_of([sys.executable, "-c", ""], kept, limit_seconds=60) == Outcome([1], {}, Counter(kill=1))
