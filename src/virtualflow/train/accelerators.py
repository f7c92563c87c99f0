"""The accelerators of this machine, by way of ``torch.accelerator``.

What torch has no common word for is an entry in ``ACCELERATOR_TYPES``; a type without one works, too, and says less
of itself.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from virtualflow.core.device_choice import Accelerator
from virtualflow.errors import ConfigError

Facts = dict[str, str | None]
UNCHOSEN = "ieee"  # the precision of float32 operators that nobody has chosen one for, in torch, too
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, slots=True)
class AcceleratorType:
    """A type of accelerator: what makes its kernels deterministic, and what else decides bits there."""

    make_deterministic: Callable[[], None] = lambda: None
    settings: Callable[[], Facts] = dict
    versions: Callable[[int], Facts] = lambda index: {}


def present() -> tuple[Accelerator, ...]:
    """The accelerators that this process sees. (It can't fork and use them afterwards.)"""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return ()
    return tuple(
        Accelerator(
            accelerator.type, name_of(torch.device(accelerator.type, index)), _identity(accelerator.type, index)
        )
        for index in range(torch.accelerator.device_count())
    )


_own: int | None = None


def use(index: int) -> None:
    """Make the accelerator with that index this process's own."""
    global _own
    _own = index
    torch.accelerator.set_device_index(index)
    torch.empty(0, device=torch.accelerator.current_accelerator())  # its generators exist from now on


def return_to_own() -> torch.device:
    """This process's own device, after a library has chosen another one: the CPU, if none was given to it."""
    accelerator = torch.accelerator.current_accelerator()
    if _own is None or accelerator is None:
        return torch.device("cpu")
    torch.accelerator.set_device_index(_own)
    return torch.device(accelerator.type, _own)


def name_of(device: torch.device) -> str:
    """The model of a device; of a CPU, and where torch does not report one, the type."""
    named = getattr(torch.get_device_module(device), "get_device_name", None)
    return str(named(device)) if named is not None and device.type != "cpu" else device.type


def facts(device: torch.device) -> Facts:
    """What bits depend on besides the model of the *device*: driver, libraries, settings."""
    entry = ACCELERATOR_TYPES.get(device.type)
    return entry.versions(device.index or 0) | entry.settings() if entry is not None else {}


def settings(device: torch.device) -> Facts:
    """The settings of torch that decide bits on *device*, as they are now."""
    return ACCELERATOR_TYPES[device.type].settings() if device.type in ACCELERATOR_TYPES else {}


def make_deterministic(device: torch.device) -> None:
    """Choose deterministic kernels where ``torch.use_deterministic_algorithms`` does not."""
    if device.type in ACCELERATOR_TYPES:
        ACCELERATOR_TYPES[device.type].make_deterministic()


def check_float64(device: torch.device) -> None:
    """Raise ConfigError if *device* can't add in float64, as the exact reduction does."""
    try:
        float(torch.ones((), dtype=torch.float64, device=device) + 2.0**-40)
    except (TypeError, RuntimeError) as error:
        raise ConfigError(
            f'reduction="exact" adds in float64, which {device.type} devices don\'t have '
            f'({str(error).splitlines()[0]}). Use reduction="fast" there, which is equal up to rounding, or train on '
            "the CPU: `vf run --device-type cpu`."
        ) from None


def seed_generators(seed: int) -> None:
    """Seed the generators of all accelerators, if they are in use."""
    if (call := _of_all("manual_seed")) is not None:
        call(seed)


def generator_states() -> list[Tensor] | Tensor | None:
    """The state of their generators, for ``set_generators``; None if they are not in use."""
    call = _of_all("get_rng_state")
    return None if call is None else call()


def set_generators(states: list[Tensor] | Tensor | None) -> None:
    """Give the generators the states that they had."""
    if states is not None and (call := _of_all("set_rng_state")) is not None:
        call(states)


def allocated_bytes(device: torch.device | None = None) -> int | None:
    """The memory of *device*, or of all accelerators, that this process's tensors occupy; None if none is in use."""
    if _of_all("manual_seed") is None or (device is not None and device.type == "cpu"):
        return None
    # By number: which device is the current one differs between threads.
    indices = range(torch.accelerator.device_count()) if device is None else [device.index]
    return sum(map(torch.accelerator.memory_allocated, indices))


def memory_bytes(device: torch.device) -> int:
    """How much memory a device has; 0 if that can't be said, as of a CPU core, which shares its machine's."""
    if device.type == "cpu":
        return 0
    properties = getattr(torch.get_device_module(device), "get_device_properties", None)
    return int(getattr(properties(device), "total_memory", 0)) if properties is not None else 0


def _of_all(name: str) -> Callable[..., Any] | None:
    """What does *name* for all accelerators; None as long as they are not in use."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None:
        return None
    module = torch.get_device_module(accelerator)
    if not getattr(module, "is_initialized", module.is_available)():
        return None
    call: Callable[..., Any] = getattr(module, f"{name}_all", None) or getattr(module, name)  # mps: there is only one
    return call


def _identity(device_type: str, index: int) -> str:
    """A name that no other accelerator has, on any machine; it is the same whichever of them are hidden."""
    properties = getattr(torch.get_device_module(device_type), "get_device_properties", None)
    given = getattr(properties(index), "uuid", None) if properties is not None else None
    return f"{device_type}-{given}" if given is not None else f"{device_type}-{platform.node()}-{index}"


def _hold_cuda() -> None:
    torch.backends.cudnn.benchmark = False  # it would choose kernels by how fast they are today
    torch.backends.cudnn.deterministic = True
    for operators in _precisions().values():
        # What the script has chosen for these operators, or for all; else what plain PyTorch does. Said of each, so
        # that neither another default nor a later word for all of them changes it.
        chosen = operators.fp32_precision
        operators.fp32_precision = UNCHOSEN if chosen == "none" else chosen


def _precisions() -> dict[str, Any]:
    """The operators that may round float32 to TF32. By the newer names alone: torch forbids to use both."""
    backends: Any = torch.backends
    return {
        "precision of matrix products": backends.cuda.matmul,
        "precision of convolutions": backends.cudnn.conv,
        "precision of recurrent layers": backends.cudnn.rnn,
    }


_ATTENTION = ("flash", "mem_efficient", "math", "cudnn")  # which of them runs decides bits


def _cuda_settings() -> Facts:
    backends: Any = torch.backends
    return {
        "CUBLAS_WORKSPACE_CONFIG": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        "deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()),
        "cudnn.benchmark": str(backends.cudnn.benchmark),
        "cudnn.deterministic": str(backends.cudnn.deterministic),
        **{name: operators.fp32_precision for name, operators in _precisions().items()},
        "sums of float16 in less": str(backends.cuda.matmul.allow_fp16_reduced_precision_reduction),
        "sums of bfloat16 in less": str(backends.cuda.matmul.allow_bf16_reduced_precision_reduction),
        "sums of float16 in float16": str(backends.cuda.matmul.allow_fp16_accumulation),
        "kinds of attention": ", ".join(name for name in _ATTENTION if getattr(backends.cuda, f"{name}_sdp_enabled")()),
    }


def _cuda_versions(_: int) -> Facts:
    return {
        "driver": _nvidia_driver(),
        "CUDA": torch.version.cuda or getattr(torch.version, "hip", None),
        "cuBLAS": _cublas(),
        "cuDNN": _text(torch.backends.cudnn.version()),
        "NCCL": _nccl(),
    }


def _nvidia_driver() -> str | None:
    try:
        version = re.search(r"\b\d+\.\d+(\.\d+)?\b", NVIDIA_DRIVER.read_text())
    except OSError:
        return None
    return version[0] if version else None


def _cublas() -> str | None:
    """The version of the cuBLAS that this process has loaded, which torch does not report."""
    try:
        maps = Path("/proc/self/maps").read_text()
        library = ctypes.CDLL(next(word for word in maps.split() if "/libcublas.so" in word))
        parts = [ctypes.c_int() for _ in range(3)]  # major, minor, patch
        for number, part in enumerate(parts):
            library.cublasGetProperty(number, ctypes.byref(part))
    except (OSError, StopIteration, AttributeError):
        return None
    return ".".join(str(part.value) for part in parts)


def _nccl() -> str | None:
    try:
        return ".".join(map(str, torch.cuda.nccl.version()))
    except (AttributeError, RuntimeError):  # a torch without it
        return None


def _xpu_versions(index: int) -> Facts:
    return {
        "driver": _text(getattr(torch.xpu.get_device_properties(index), "driver_version", None)),
        "XPU": _text(getattr(torch.version, "xpu", None)),
    }


def _text(value: object) -> str | None:
    return None if value is None else str(value)


ACCELERATOR_TYPES = {
    "cuda": AcceleratorType(_hold_cuda, _cuda_settings, _cuda_versions),
    "xpu": AcceleratorType(versions=_xpu_versions),
}
