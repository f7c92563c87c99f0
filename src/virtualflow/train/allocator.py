"""How this process's memory allocator treats freed memory."""

from __future__ import annotations

import ctypes
from functools import cache

import torch

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_NEVER = -1
_LARGEST_KEPT = 2**30


def have_ready(size_bytes: int) -> None:
    """Take so much memory from the system now, while nobody waits, and keep it for later.

    Its first use costs the system as much as filling it: a worker that joins does that before it is let in.
    """
    keep_freed_memory()
    torch.empty(size_bytes, dtype=torch.uint8).fill_(0)


@cache
def keep_freed_memory() -> None:
    """Let memory that was freed serve the next virtual node, instead of going back to the system in between.

    Virtual nodes allocate and free the same activations and gradients over and over. Left alone, glibc returns large
    ones at once, and the system clears every page anew: a tenth of the time of a small ResNet. The peak is the same.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _NEVER)
        mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT)
