"""How memory is written on the command line and in a device file, and how grids of cells are printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from virtualflow.cli.jobs import print_facts
from virtualflow.cli.memory import device_memory, needs_of
from virtualflow.cli.timeline import _runs_on
from virtualflow.core.memory_needs import MemoryNeeds
from virtualflow.errors import ConfigError
from virtualflow.events import RunStarted
from virtualflow.solver import device_files

GB = 1 << 30


def test_a_job_states_one_size_or_one_for_each_stage() -> None:
    assert needs_of("20GB", None, 2) == MemoryNeeds((20 * GB,))
    assert needs_of("6GB,4GBx2,512M", "1GB", 1) == MemoryNeeds((6 * GB, 4 * GB, 4 * GB, GB // 2), GB, 1)
    assert needs_of("4GBx2", None, None) == MemoryNeeds((4 * GB, 4 * GB), copies=2)
    assert needs_of(None, None, None) is None


@pytest.mark.parametrize("wrong", ["", "much", "4GBx0", "4GBxtwo", "4GBx", "4GB,,4GB", "-1GB", "9999999TB"])
def test_what_is_no_size_is_refused_by_name(wrong: str) -> None:
    with pytest.raises(ConfigError, match="--memory"):
        needs_of(wrong, None, 2)
    with pytest.raises(ConfigError, match="--node-memory"):
        needs_of("4GB", "x", 2)
    with pytest.raises(ConfigError, match="--node-memory needs --memory"):
        needs_of(None, "1GB", None)
    with pytest.raises(ConfigError, match="--copies needs --memory"):
        needs_of(None, None, 2)


def test_devices_have_memory_by_option_or_device_file(tmp_path: Path) -> None:
    file = tmp_path / "devices.toml"
    file.write_text('[device.V100]\nmemory = "16GB"\n[device.old]\nmemory = "8GB"\nspeed = 0.5\n')
    types = ["V100", "old", "cpu"]
    assert device_memory(None, file, types) == {"V100": 16 * GB, "old": 8 * GB}
    assert device_memory("old=4GB", file, types) == {"V100": 16 * GB, "old": 4 * GB}
    assert device_memory("2GB", None, types) == dict.fromkeys(types, 2 * GB)
    assert device_memory(None, None, types) == {}
    contents = device_files.read_file(file)
    assert device_files.of_type("V100", contents, None, 1.0) is None  # it is no emulated one
    assert device_files.of_type("old", contents, None, 1.0) is not None
    with pytest.raises(ConfigError, match=r"there is no device type 'P100'\. There are V100, old, cpu"):
        device_memory("P100=1GB", None, types)
    with pytest.raises(ConfigError, match="--device-memory old=1GB,old=2GB: it names old twice"):
        device_memory("old=1GB,old=2GB", None, types)
    with pytest.raises(ConfigError, match="a device without memory runs nothing"):
        device_memory("0GB", None, types)
    file.write_text("[device.V100]\nmemory = 16\n")
    with pytest.raises(ConfigError, match='such as memory = "16GB"'):
        device_files.read_file(file)


def test_describe_draws_the_grid_and_says_what_was_stated(capsys: Any) -> None:
    facts = {
        "id": "a", "mapping": {"0": [0, 1]}, "events": [], "failure": None, "stages": 2, "speed": None,
        "memory": {"stages": [6 * GB, 4 * GB], "node": 0, "copies": 2},
        "cells": [["0", "0"], ["1", "2"]], "shadows": [["1"], []],
    }  # fmt: skip
    print_facts(facts)
    said = capsys.readouterr().out
    assert "stages of 6 GB 4 GB, 2 copies" in " ".join(said.split())
    assert "stage 0 is also held by 1" in said
    rows = [line.split() for line in said.splitlines()]
    assert ["0", "a", "a"] in rows
    assert ["1", "b", "c"] in rows
    assert "devices: a = 0, b = 1, c = 2" in said


def test_a_timeline_counts_the_cells_of_a_model_in_stages() -> None:
    assert _runs_on(RunStarted({}, ["0", "1"], ["0", "0", "1"], 2)) == {"0": 2, "1": 1}
    assert _runs_on(RunStarted({}, ["0", "1", "2"], [], 3, [["0", "0"], ["0", "1"]])) == {"0": 3, "1": 1, "2": 0}
