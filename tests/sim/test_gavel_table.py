"""Gavel's table of throughputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from virtualflow.cluster.job import Job
from virtualflow.core.devices import parse_pools
from virtualflow.errors import ConfigError
from virtualflow.sim import gavel_table

ONE, TWO = "('A (batch size 8)', 1)", "('A (batch size 8)', 2)"
CONTENTS = {
    "v100": {ONE: {"null": 3.011, ONE: [1.5, 1.5]}, TWO: {"null": 5.0}},
    "v100_unconsolidated": {ONE: {"null": 3.011}, TWO: {"null": 4.0}},
}


def job(demand: int = 1) -> Job:
    return Job("0", 0.0, demand, 100, "A (batch size 8)")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(CONTENTS))
    return path


def test_speeds_by_type_and_number_of_devices(file: Path) -> None:
    table = gavel_table.read(file)
    assert table.speed(job(2), parse_pools("V100:2")).steps_per_second == 5.0
    assert table.speed(job(2), parse_pools("V100:1+1")).steps_per_second == 4.0  # on two machines
    assert table.speed(job(1), parse_pools("V100:4")).devices == 1  # it has no use for more
    assert table.slowdown(job(), [job()], "V100") == pytest.approx(1.5 / 3.011)


def test_rounds_have_whole_steps(file: Path) -> None:
    table = gavel_table.read(file, whole_steps_seconds=360.0)
    assert table.speed(job(), parse_pools("V100:1")).steps_per_second * 360 == pytest.approx(1083)


def test_an_unknown_workload_is_named(file: Path) -> None:
    with pytest.raises(ConfigError, match="no workload 'B'"):
        gavel_table.read(file).usable(Job("0", 0.0, 1, 1, "B"), "V100")


@pytest.mark.parametrize("text", ["", "[]", '{"v100": {"x": {}}}', '{"v100": {"(1": {"null": 1}}}'])
def test_a_file_that_is_no_table_says_so(tmp_path: Path, text: str) -> None:
    path = tmp_path / "table.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"table\.json is no table of throughputs"):
        gavel_table.read(path)


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the table"):
        gavel_table.read(tmp_path / "table.json")
