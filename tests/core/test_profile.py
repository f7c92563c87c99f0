"""What a profile may be used for: void figures never, and what was not measured is no limit."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from virtualflow.cli.main import app
from virtualflow.core import profile as profiles
from virtualflow.core.balance import Speeds
from virtualflow.core.devices import Pool
from virtualflow.core.profile import LARGEST, MEMORY, PACE, TIME, Communication, Point, Profile, Workload
from virtualflow.errors import ProfileError, SolverError
from virtualflow.solver import profile_files
from virtualflow.solver.node_shares import Share
from virtualflow.solver.search import predict, solve_fixed

FOUR = Profile("V100", (Point(1, 1.0), Point(2, 1.5), Point(4, 2.5)), 0.1)


def workload(profile: Profile) -> Workload:
    return Workload("train", {profile.device_type: profile})


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0, 0.0])
def test_a_time_is_a_number_above_zero(seconds: float) -> None:
    with pytest.raises(ProfileError, match="each with a time"):
        Profile("V100", (Point(1, seconds),))


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0])
def test_an_update_and_communication_take_a_time_too(seconds: float) -> None:
    with pytest.raises(ProfileError, match="update"):
        replace(FOUR, update_seconds=seconds)
    with pytest.raises(ProfileError, match="communication"):
        Communication(((2, seconds),))


def test_a_void_profile_is_never_used() -> None:
    void = workload(replace(FOUR, void="12 waves took longer than on the device that they emulate"))
    for use in (lambda: void.profile("V100"), lambda: solve_fixed(void, [Pool("V100", (1,))], 2, 2)):
        with pytest.raises(ProfileError, match=r"is void: 12 waves took longer.*Make it again"):
            use()


def test_only_memory_is_a_limit() -> None:
    pools = [Pool("V100", (2,))]
    with pytest.raises(SolverError, match="the largest that did is 4 on V100"):
        solve_fixed(workload(FOUR), pools, 8, 4)
    with pytest.raises(SolverError, match="whose memory holds at most 4"):
        predict(workload(FOUR), pools, [Share("V100", 2, 2, 8)])
    assert not Speeds(workload(FOUR)).fits("V100:0", 8)
    for ended_by in (TIME, LARGEST, PACE):
        known = workload(replace(FOUR, ended_by=ended_by))
        plan = solve_fixed(known, pools, 8, 4)
        assert plan.guessed == ("V100",)
        assert plan.compute_seconds == pytest.approx(2 * 5.0 + 0.1)  # no faster per example than any that was seen
        assert Speeds(known).fits("V100:0", 8)


def test_a_file_keeps_why_a_profile_ended_and_whether_it_is_void(tmp_path: Path) -> None:
    known = workload(replace(FOUR, ended_by=PACE, void="so it is"))
    (tmp_path / "V100.json").write_text(json.dumps(profiles.to_json(known)))
    assert profile_files.read_all(tmp_path) == known


@pytest.mark.parametrize(
    ("facts", "ended_by", "void"),
    [
        ({}, MEMORY, False),
        ({"memory_was_full": True, "overran_waves": 0}, MEMORY, False),
        ({"memory_was_full": False}, TIME, False),
        ({"memory_was_full": True, "overran_waves": 3}, MEMORY, True),
    ],
)
def test_a_file_whose_facts_alone_say_so_is_understood(facts: dict[str, object], ended_by: str, void: bool) -> None:
    contents = profiles.to_json(workload(replace(FOUR, facts=facts)))
    for entry in contents["profiles"]:
        del entry["ended_by"], entry["void"]
    result = profiles.from_json(contents, "a file").profiles["V100"]
    assert (result.ended_by, bool(result.void)) == (ended_by, void)


def test_vf_solve_tells_what_fits_from_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")

    def solved(ended_by: str, *words: str) -> str:
        contents = profiles.to_json(workload(replace(FOUR, ended_by=ended_by)))
        (tmp_path / "V100.json").write_text(json.dumps(contents))
        command = ["solve", "--profiles", str(tmp_path), "--devices", "V100:2", *words]
        return CliRunner().invoke(app, command, catch_exceptions=False).stdout

    assert "4 (fits)" in solved(MEMORY, "--batch-size", "16")
    assert "4 (measured)" in solved(TIME, "--batch-size", "16")
    beyond = solved(TIME, "--batch-size", "32", "--virtual-nodes", "4")
    assert "V100: node size 8 was not measured, its time is extrapolated, only up to 4" in beyond
    assert "whether it fits into memory is not known" in beyond
