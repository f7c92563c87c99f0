"""The facts of a run, gathered where torch is."""

from __future__ import annotations

import platform
from typing import Any

import numpy
import torch

import virtualflow
from virtualflow.program import provenance
from virtualflow.system.hash_seed import hash_seed_here
from virtualflow.train import solo
from virtualflow.train.seeding import mkl_is_strict


def environment(device: torch.device) -> dict[str, Any]:
    """What bits depend on besides the job: library versions, device type, instruction set, threads."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "virtualflow": virtualflow.__version__,
        "device_type": device_type(device),
        "instruction_set": instruction_set(),
        "threads_per_device": torch.get_num_threads(),
        "mkl_strict": mkl_is_strict(),
        "hash_seed": hash_seed_here(),
        **_program(),
    }


def optimizer_settings(optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """The optimizer's type, and what its groups are set to, by name."""
    settings = {"type": type(optimizer).__name__}
    for number, group in enumerate(optimizer.param_groups):
        prefix = f"group {number}'s " if len(optimizer.param_groups) > 1 else ""
        settings |= {
            f"{prefix}{name}": str(value.tolist() if isinstance(value, torch.Tensor) else value)
            for name, value in group.items()
            if name != "params"
        }
    return settings


def _program() -> dict[str, Any]:
    """Of the code that runs: as the launcher knows it, else as this process does."""
    launched = solo.installed()
    told = launched.job.program_facts if launched is not None else None
    return told() if told is not None else provenance.facts_of_plain_script()


def device_type(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def instruction_set() -> str:
    """The vector instructions torch uses, and the processor's model: kernels are chosen by both."""
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{capability} on {_processor_model()}"


def _processor_model() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
