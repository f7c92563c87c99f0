"""Which of a machine's accelerators a job's devices are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from virtualflow.core.devices import CPU, type_of
from virtualflow.errors import LaunchError

AUTO = "auto"
ACCELERATORS = ("cuda", "xpu")  # torch's words for those that `--device-type` may name; auto takes any


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One that a machine has."""

    device_type: str  # torch's word for its type: cuda, xpu
    name: str  # its model
    identity: str  # that no other one has


def runs_on_cpu(device: str, device_type: str, present: Sequence[Accelerator]) -> bool:
    """Whether *device* is a core: because it has to be, or for want of accelerators."""
    return device_type == CPU or (device_type == AUTO and type_of(device) == CPU and not present)


def candidates(device: str, device_type: str, present: Sequence[Accelerator]) -> list[int]:
    """The indices of those accelerators that *device* may be, the one that it is named after first."""
    fitting = [
        index
        for index, accelerator in enumerate(present)
        if device_type in (AUTO, accelerator.device_type)
        and (type_of(device) == CPU or type_of(device).lower() in accelerator.name.lower())
    ]
    number = device.rpartition(":")[2]
    start = int(number) % len(fitting) if number.isdecimal() and fitting else 0
    return fitting[start:] + fitting[:start]


def check(devices: Sequence[str], device_type: str, present: Sequence[Accelerator]) -> None:
    """Raise LaunchError unless there is an accelerator for each device that needs one."""
    needed = Counter(type_of(device) for device in devices if not runs_on_cpu(device, device_type, present))
    for wanted, count in needed.items():
        usable = [present[index] for index in candidates(f"{wanted}:0", device_type, present)]
        models = sorted({accelerator.name for accelerator in usable})
        type_name = "accelerator" if device_type == AUTO else device_type
        what = f"devices of type {wanted}" if wanted != CPU else f"{type_name} devices"
        if count > len(usable):
            raise LaunchError(
                f"the job needs {count} {what}, and this machine has {len(usable)}{_list(usable)}. Use at most that "
                "many, --device-type cpu for cores, or emulate a type: --emulate WORKLOAD, or --device-file FILE. "
                "Hidden ones (CUDA_VISIBLE_DEVICES) do not count."
            )
        if wanted == CPU and len(models) > 1:
            raise LaunchError(
                f"this machine's accelerators are of several models ({', '.join(models)}), whose kernels round "
                f'differently. Say which: --devices "{models[0]}:{count}".'
            )


def _list(present: Sequence[Accelerator]) -> str:
    names = Counter(accelerator.name for accelerator in present)
    return f" ({', '.join(f'{count} x {name}' for name, count in names.items())})" if names else ""
