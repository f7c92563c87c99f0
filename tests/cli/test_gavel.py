"""vf simulate with Gavel's traces, table and rules."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from virtualflow.cli.main import app

runner = CliRunner()
KEY = "('A (batch size 8)', 1)"


def simulate(folder: Path, *more: str) -> dict:
    trace, table = folder / "jobs.trace", folder / "table.json"
    lines = [f"A (batch size 8)\trun\tdir\t-n\t0\t{steps}\t1\t1\t-1.0\t{arrival}" for steps, arrival in JOBS]
    trace.write_text("\n".join(lines) + "\n")
    table.write_text(json.dumps({"v100": {KEY: {"null": 1.0}}, "k80": {KEY: {"null": 0.251}}}))
    arguments = ["simulate", str(trace), "--throughputs", str(table), "--devices", "v100:1,k80:1", "--costs", "none"]
    result = runner.invoke(app, [*arguments, "--policy", "las", "--json", *more])
    assert result.exit_code == 0, (result.output, result.exception)
    jobs = json.loads(result.stdout)["policies"]["las"]["jobs"]
    return {job["id"]: job for job in jobs}


JOBS = ((720, 0), (90, 400))


def test_speeds_come_from_the_table_and_starts_wait_for_a_round(tmp_path: Path) -> None:
    jobs = simulate(tmp_path)
    assert jobs["0"]["end_seconds"] == 720.0
    assert jobs["1"]["start_seconds"] == 720.0


def test_with_gavels_rules_rounds_begin_when_the_last_one_ends(tmp_path: Path) -> None:
    jobs = simulate(tmp_path, "--compat", "gavel")
    assert jobs["0"]["end_seconds"] == 720.0
    # The first program was solved at 0 s, which Gavel takes for never: no gate yet.
    assert jobs["1"]["start_seconds"] == 720.0
    assert jobs["1"]["end_seconds"] == 810.0
