"""Other plans, why they lose, and what an emulated device type is like."""

from __future__ import annotations

from pathlib import Path

import pytest

from virtualflow.core.devices import Pool
from virtualflow.errors import ConfigError
from virtualflow.solver import device_files
from virtualflow.solver.alternatives import alternatives, even, subsets
from virtualflow.solver.node_shares import Plan, Share

BEST = Plan((Share("V100", 2, 3, 8), Share("P100", 2, 1, 8)), 1.0, 0.1)


def test_other_plans_come_with_the_reason_why_they_lose_the_best_first() -> None:
    slow = Plan((Share("P100", 2, 4, 8),), 2.0, 0.05)
    same = Plan((Share("V100", 1, 8, 8),), 1.0, 0.1)
    assert alternatives(BEST, [slow, BEST, same, slow]) == [
        (same, "as fast, with 1 devices instead of 4"),
        (slow, "its slowest device computes 1 s longer; 0.05 s less communication does not make up for it"),
    ]


def test_an_even_split_gives_every_device_the_same_and_the_first_ones_what_is_left() -> None:
    pools = [Pool("V100", (2,)), Pool("P100", (1,))]
    assert even(BEST, pools) == (Share("V100", 2, 3, 8), Share("P100", 1, 2, 8))
    assert sum(share.count * share.virtual_nodes for share in even(BEST, pools)) == BEST.virtual_nodes


@pytest.mark.parametrize(("types", "groups"), [(1, 0), (2, 2), (3, 6), (4, 14), (5, 5)])
def test_groups_of_types_are_all_but_the_whole_and_single_ones_if_they_are_many(types: int, groups: int) -> None:
    pools = [Pool(f"T{number}", (1,)) for number in range(types)]
    assert len(list(subsets(pools))) == groups


def test_a_part_of_a_core_needs_no_file() -> None:
    emulated = device_files.of_type("cpu@0.25", {}, None, 1.0)
    assert emulated is not None
    assert emulated.speed == 0.25
    assert device_files.of_type("cpu", {}, None, 1.0) is None
    assert device_files.of_type("V100", {}, None, 1.0) is None  # a real one


@pytest.mark.parametrize("name", ["cpu@0", "cpu@1.5", "cpu@fast"])
def test_a_speed_is_a_part_of_a_core(name: str) -> None:
    with pytest.raises(ConfigError, match=r"above 0 and at most 1"):
        device_files.of_type(name, {}, None, 1.0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a = ", "is not TOML"),
        ("scale = 2", "has scale; expected time_scale"),
        ("time_scale = true", "time_scale must be a number"),
        ("device = 3", "a device type is a table"),
        ('[[slower]]\ndevice = "0"', r"each \[\[slower\]\] needs device, from_step and factor"),
    ],
)
def test_a_wrong_device_file_is_refused_with_what_it_should_have(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "devices.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=reason):
        device_files.read_file(file)


def test_a_device_type_that_says_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"\[device.old\] needs speed = 0.25"):
        device_files.of_type("old", {"device": {"old": {}}}, None, 1.0)
