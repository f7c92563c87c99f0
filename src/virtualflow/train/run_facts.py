"""The facts of a run, gathered where torch is."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

import numpy
import torch

import virtualflow
from virtualflow.core.batch_schedule import BatchSchedule
from virtualflow.program import provenance
from virtualflow.system.hash_seed import hash_seed_here
from virtualflow.train import accelerators, solo
from virtualflow.train.seeding import mkl_is_strict, seeded


def environment(device: torch.device) -> dict[str, Any]:
    """What bits depend on besides the job: library versions, device type, instruction set, threads."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "virtualflow": virtualflow.__version__,
        "device_type": accelerators.name_of(device),
        "accelerator": accelerators.facts(device),
        "instruction_set": instruction_set(),
        "threads_per_device": torch.get_num_threads(),
        "mkl_strict": mkl_is_strict(),
        "hash_seed": hash_seed_here(),
        **_program(),
    }


def of_job(seed: int, schedule: BatchSchedule) -> dict[str, Any]:
    """What makes a job this one: a checkpoint of another is refused."""
    sizes = schedule.at(0)
    sized = {"batch_size": sum(sizes), "virtual_nodes": len(sizes), "node_sizes": list(sizes)}
    return {"seed": seed, **sized, "later_batch_sizes": schedule.later}


def of_run(
    device: torch.device, reduction: str, job: dict[str, Any], optimizers: Sequence[torch.optim.Optimizer], digest: str
) -> dict[str, Any]:
    """What is known of a run when it starts. *job* are the facts of its job; *digest* is that of its first state."""
    return {
        **environment(device),
        "reduction": reduction,
        **job,
        "optimizer": optimizer_settings(optimizers),
        "seeded": seeded() is not None,
        "initial_digest": digest,
    }


def optimizer_settings(optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, str]:
    """The optimizers' types, and what their groups are set to, by name."""
    if len(optimizers) == 1:
        return _settings(optimizers[0])
    return {
        f"optimizer {place}'s {name}": value
        for place, optimizer in enumerate(optimizers)
        for name, value in _settings(optimizer).items()
    }


def _settings(optimizer: torch.optim.Optimizer) -> dict[str, str]:
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
    program_facts = launched.job.program_facts if launched is not None else None
    return program_facts() if program_facts is not None else provenance.facts_of_plain_script()


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
