"""Which concrete devices."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualflow.cluster.placement import Placement
from virtualflow.core.devices import Pool, parse_pools
from virtualflow.errors import ConfigError


def test_a_job_goes_where_it_fits_best() -> None:
    placement = Placement(parse_pools("V100:4+2"))
    assert placement.take("V100", 2) == ["V100:4", "V100:5"]  # the small machine is filled, the large one stays whole
    assert placement.take("V100", 4) == ["V100:0", "V100:1", "V100:2", "V100:3"]


def test_a_job_that_fits_nowhere_takes_the_emptiest_machines() -> None:
    placement = Placement(parse_pools("V100:4+2"))
    taken = placement.take("V100", 5)
    assert placement.pools(taken) == (Pool("V100", (4, 1)),)


def test_growing_prefers_the_machines_a_job_is_on_and_shrinking_leaves_those_with_few() -> None:
    placement = Placement(parse_pools("V100:4+4"))
    first = placement.take("V100", 2)
    placement.take("V100", 4)
    more = placement.take("V100", 1, near=first)
    assert placement.machine_of(more[0]) == placement.machine_of(first[0])
    spread = ["V100:0", "V100:1", "V100:4"]
    assert placement.to_release(spread, "V100", 1) == ["V100:4"]


def test_lost_devices_come_back_to_the_free_ones_only_when_they_join() -> None:
    placement = Placement(parse_pools("V100:2,P100:1"))
    held = placement.take("V100", 1)
    placement.lose([*held, "P100:0"])
    placement.give_back(held)
    assert placement.free == {"V100": 1, "P100": 0}
    assert placement.capacity == {"V100": 1, "P100": 0}
    placement.join(held)
    assert placement.free == {"V100": 2, "P100": 0}
    with pytest.raises(ConfigError, match="not missing"):
        placement.join(held)


@settings(deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.lists(st.integers(1, 6), max_size=12), st.randoms())
def test_every_device_is_free_or_taken_by_one(machines: list[int], wanted: list[int], chance: object) -> None:
    placement = Placement([Pool("V100", tuple(sorted(machines, reverse=True)))])
    held: list[list[str]] = []
    for count in wanted:
        if count <= placement.free["V100"]:
            held.append(placement.take("V100", count))
        elif held:
            placement.give_back(held.pop(chance.randrange(len(held))))  # type: ignore[attr-defined]
        taken = [device for devices in held for device in devices]
        assert len(taken) == len(set(taken)) == sum(machines) - placement.free["V100"]
