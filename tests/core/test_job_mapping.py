"""The mapping of a running job: by hand, even, or by speed; and how many devices it can have."""

from __future__ import annotations

import pytest

from virtualflow.core.balance import Speeds
from virtualflow.core.job_mapping import JobMapping
from virtualflow.errors import MappingError

SIZES = (2, 2, 2, 2)


def test_before_the_sizes_are_known_any_number_of_devices_will_do() -> None:
    mapping = JobMapping(("0",))
    mapping.check([str(n) for n in range(100)])
    mapping.check_one_more([str(n) for n in range(100)])


def test_a_mapping_by_hand_is_that_of_the_first_devices_only() -> None:
    mapping = JobMapping(("0", "1"), owners=(1, 1, 1, 0))
    mapping.begin(SIZES, ("0", "1"))
    assert mapping.current is not None
    assert mapping.current.devices == ("1", "1", "1", "0")
    assert sorted(mapping.on(("0", "1", "2")).devices) == ["0", "1", "1", "2"]


def test_a_device_that_was_lost_before_the_first_step_gets_nothing() -> None:
    mapping = JobMapping(("0", "1"), owners=(1, 1, 1, 0))
    mapping.begin(SIZES, ("1",))
    assert mapping.current is not None
    assert set(mapping.current.devices) == {"1"}


def test_slower_devices_get_fewer_virtual_nodes() -> None:
    mapping = JobMapping(("0", "1"), speeds=Speeds(seen={"0": 1.0, "1": 3.0}))
    mapping.begin(SIZES, ("0", "1"))
    assert mapping.is_awaited
    assert sorted(mapping.on(("0", "1")).devices) == ["0", "0", "0", "1"]


def test_with_a_mapping_by_hand_no_other_is_waited_for() -> None:
    mapping = JobMapping(("0", "1"), owners=(0, 0, 1, 1), speeds=Speeds())
    mapping.begin(SIZES, ("0", "1"))
    assert not mapping.is_awaited


def test_there_are_at_most_as_many_devices_as_virtual_nodes() -> None:
    mapping = JobMapping(("0",))
    mapping.begin(SIZES, ("0",))
    four = [str(n) for n in range(4)]
    mapping.check(four)
    mapping.check_one_more(four[:3])
    with pytest.raises(MappingError, match="at most that many devices, not 5"):
        mapping.check([*four, "4"])
    with pytest.raises(MappingError, match="another device would have no virtual node"):
        mapping.check_one_more(four)
