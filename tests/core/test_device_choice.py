"""Which accelerators a job gets is decided, or refused, before a worker starts."""

from __future__ import annotations

import pytest

from virtualflow.core.device_choice import Accelerator, candidates, check, runs_on_cpu
from virtualflow.errors import LaunchError

ALIKE = [Accelerator("cuda", "Tesla V100-SXM2-16GB", f"cuda-{index}") for index in range(4)]
MIXED = [*ALIKE[:2], Accelerator("cuda", "Tesla P100", "cuda-4")]


def test_a_number_of_devices_means_accelerators_where_there_are_some() -> None:
    assert not runs_on_cpu("0", "auto", ALIKE)
    assert runs_on_cpu("0", "auto", [])
    assert runs_on_cpu("0", "cpu", ALIKE)


def test_a_device_is_the_one_of_its_number_or_else_another_of_its_type() -> None:
    assert candidates("2", "auto", ALIKE) == [2, 3, 0, 1]
    assert candidates("P100:0", "auto", MIXED) == [2]
    assert candidates("v100:1", "cuda", MIXED) == [1, 0]
    assert candidates("host/1", "auto", ALIKE) == [0, 1, 2, 3]


def test_what_there_is_can_be_had() -> None:
    check(["0", "1", "2", "3"], "auto", ALIKE)
    check(["V100:0", "P100:0"], "auto", MIXED)
    check([str(number) for number in range(99)], "auto", [])
    check([str(number) for number in range(99)], "cpu", ALIKE)


@pytest.mark.parametrize(
    ("devices", "device_type", "present", "reason"),
    [
        (
            ("0", "1", "2", "3", "4"),
            "auto",
            ALIKE,
            "needs 5 accelerator device.*has 4 .4 x Tesla V100.*--device-type cpu",
        ),
        (("V100:0", "V100:1", "V100:2"), "auto", MIXED, "needs 3 devices of type V100.*has 2"),
        (("0",), "cuda", [], "has 0.*CUDA_VISIBLE_DEVICES"),
        (("0",), "xpu", ALIKE, "needs 1 xpu device.*has 0[.]"),
        (("0", "1"), "auto", MIXED, "several models .Tesla P100, Tesla V100.*Say which"),
    ],
)
def test_what_there_is_not_is_refused_with_what_to_do(
    devices: tuple[str, ...], device_type: str, present: list[Accelerator], reason: str
) -> None:
    with pytest.raises(LaunchError, match=reason):
        check(devices, device_type, present)
