"""A cluster's resources as devices: what there is, what to ask for, and names that last."""

from __future__ import annotations

import pytest

from virtualflow.backends.machines import DeviceNames, DeviceRequest, Machine, check, pools, request
from virtualflow.cluster.messages import DevicesJoined, DevicesLost
from virtualflow.errors import LaunchError

COMMON = {"memory": 1e9, "object_store_memory": 1e8, "node:10.0.0.1": 1.0, "node:__internal_head__": 1.0}
CORES = Machine("a", "10.0.0.1", {"CPU": 4.0, **COMMON})
GPUS = Machine("b", "10.0.0.2", {"CPU": 8.0, "GPU": 2.0, "accelerator_type:V100": 1.0, **COMMON})
CUSTOM = Machine("c", "10.0.0.3", {"CPU": 2.0, "big": 2.0})
UNKNOWN = Machine("d", "10.0.0.4", {"CPU": 1.0, "GPU": 1.0})


def test_devices_are_cores_gpus_by_model_and_custom_resources() -> None:
    assert CORES.devices == {"cpu": 4}
    assert GPUS.devices == {"V100": 2, "cpu": 8}
    assert UNKNOWN.devices == {"GPU": 1, "cpu": 1}
    assert [str(pool) for pool in pools([CORES, GPUS, CUSTOM])] == ["V100:2", "big:2", "cpu:8+4+2"]


@pytest.mark.parametrize(
    ("device_type", "machines", "any_gpu", "wanted"),
    [
        ("cpu", [CORES], True, DeviceRequest(cpus=3)),
        ("cpu", [CORES, GPUS], True, DeviceRequest(gpus=1)),
        ("cpu", [CORES, GPUS], False, DeviceRequest(cpus=3)),
        ("V100", [CORES, GPUS], True, DeviceRequest(gpus=1, resources={"accelerator_type:V100": 0.001})),
        ("GPU", [UNKNOWN], True, DeviceRequest(gpus=1)),
        ("big", [CORES, CUSTOM], True, DeviceRequest(resources={"big": 1})),
        ("cpu@0.5", [CORES], True, DeviceRequest(cpus=3)),  # emulated
    ],
)
def test_a_device_is_asked_for_in_the_clusters_words(
    device_type: str, machines: list[Machine], any_gpu: bool, wanted: DeviceRequest
) -> None:
    assert request(device_type, machines, 3, any_gpu=any_gpu) == wanted


def test_more_than_there_is_is_refused() -> None:
    there = [CORES, GPUS, CUSTOM]
    check(["0", "1", "V100:0", "big:0", "P100:0"], there, ["P100"], 1, any_gpu=True)
    with pytest.raises(LaunchError, match="no device of type P100"):
        check(["P100:0"], there, [], 1, any_gpu=True)
    with pytest.raises(LaunchError, match=r"wants 3 devices of type V100, and the Ray cluster has 2"):
        check([f"V100:{n}" for n in range(3)], there, [], 1, any_gpu=True)
    with pytest.raises(LaunchError, match=r"wants 3 devices of type cpu, and the Ray cluster has 2"):
        check(["0", "1", "2"], there, [], 1, any_gpu=True)  # the GPUs
    with pytest.raises(LaunchError, match="has 7"):
        check([str(n) for n in range(8)], there, [], 2, any_gpu=False)  # two threads each


def test_names_last_while_machines_come_and_go() -> None:
    names = DeviceNames()
    assert names.update([CUSTOM], 0.0) == [DevicesJoined(0.0, ("big:0", "big:1", "0", "1"))]
    assert names.update([CUSTOM, UNKNOWN], 1.0) == [DevicesJoined(1.0, ("GPU:0", "2"))]
    assert names.update([UNKNOWN], 2.0) == [DevicesLost(2.0, ("big:0", "big:1", "0", "1"))]
    assert names.devices == {"GPU:0": UNKNOWN, "2": UNKNOWN}
    new = Machine("e", "10.0.0.5", {"CPU": 1.0})
    assert names.update([UNKNOWN, CUSTOM, new], 3.0) == [DevicesJoined(3.0, ("big:0", "big:1", "0", "1", "3"))]
    assert names.update([UNKNOWN, CUSTOM, new], 4.0) == []
