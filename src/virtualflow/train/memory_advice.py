"""What to do when a device runs out of memory: the node size that would fit, from the device's own statistics."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from virtualflow.core.wording import counted

UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Of a device, in bytes."""

    before: int  # allocated when the virtual node began: model, optimizer, sums
    reached: int  # allocated when memory ran out, and still: the error's traceback holds what the node had computed
    capacity: int  # what this process has and what is free: others may have the rest

    @classmethod
    def of(cls, device: torch.device, before: int) -> MemoryUse | None:
        """As *device* tells it; None if it does not: a CPU's memory, for one, is not one process's own."""
        module = torch.get_device_module(device)
        if not hasattr(module, "mem_get_info"):
            return None
        free, _ = module.mem_get_info(device)
        # Not the peak, which may be of something before this virtual node: an evaluation, a larger batch.
        return cls(before, module.memory_allocated(device), free + module.memory_reserved(device))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether *error* means that memory has run out, on a CPU or an accelerator."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return "can't allocate memory" in str(error) or "out of memory" in str(error)


def fitting_size(examples: int, use: MemoryUse, asked: int = 0) -> int:
    """The largest node size that may fit, if *examples* did not; 0 if none does.

    What a virtual node needs grows with its examples. It had come so far and asked for *asked* bytes more, and
    would have needed yet more later: so this is an upper bound, and less than *examples*.
    """
    free = use.capacity - use.before
    needed = max(use.reached - use.before + asked, free)  # or it would have fitted
    return max(0, min(examples - 1, examples * free // needed if needed > free else examples // 2))


def memory_advice(node: int, examples: int, global_step: int, error: BaseException, use: MemoryUse | None) -> str:
    """What happened, and what would fit."""
    reason = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
    happened = (
        f"out of memory in step {global_step}, virtual node {node} with {counted(examples, 'example')}: {reason}. "
    )
    smaller = "A device holds one virtual node at a time, so more virtual nodes (smaller ones) need less memory"
    if use is None:
        return f"{happened}{smaller} for the same batch."
    figures = (
        f"The device has {_shown(use.capacity)}; model, optimizer and sums took {_shown(use.before)} of it, and the "
        f"virtual node came to {_shown(max(0, use.reached - use.before))} more. "
    )
    size = fitting_size(examples, use, _asked_bytes(reason))
    if size == 0:
        return f"{happened}{figures}One example does not fit beside them: use a smaller model or a larger device."
    return (
        f"{happened}{figures}{smaller}: about {counted(size, 'example')} each may fit, where now there are {examples}."
    )


def _asked_bytes(reason: str) -> int:
    size = re.search(r"[Tt]ried to allocate (\d+(?:\.\d+)?) (bytes|KiB|MiB|GiB)", reason)
    return int(float(size[1]) * UNITS[size[2]]) if size is not None else 0


def _shown(size_bytes: int) -> str:
    unit = next((name for name in ("GiB", "MiB", "KiB") if size_bytes >= UNITS[name]), "bytes")
    return f"{size_bytes / UNITS[unit]:.3g} {unit}"
