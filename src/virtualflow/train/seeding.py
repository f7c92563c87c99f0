"""Generators, threads and the settings that decide bits: all set here, from a seed that says what it is for."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from virtualflow.core import membership

logger = logging.getLogger("virtualflow")


@dataclass(frozen=True, slots=True)
class Seeded:
    """What ``vf.seed`` was told."""

    seed: int
    threads_per_device: int


_seeded: Seeded | None = None


def seed(seed: int, *, threads_per_device: int | None = None) -> None:
    """Seed every generator and pin the number of threads. Call it before the model is built.

    A CPU device is one core and so one thread, unless *threads_per_device* (or ``vf run --threads-per-device``)
    says otherwise: gradients, and even some initialisations, differ between one thread and two.
    """
    global _seeded
    launched = membership.installed()
    threads = threads_per_device or (launched.job.threads_per_device if launched else 1)
    pin_threads(threads)
    torch.manual_seed(seed)
    reseed(seed % 2**32)
    _seeded = Seeded(seed, threads)
    cores = os.cpu_count() or 1
    if launched is None and threads < cores:
        logger.warning(
            "a device is %d of this machine's %d cores; `vf run --devices N script.py` uses more, for the same bits",
            threads,
            cores,
        )


def seeded() -> Seeded | None:
    """What ``vf.seed`` was told in this process, if it was called."""
    return _seeded


def pin_threads(threads: int) -> None:
    """Fix what the bits of a matrix product depend on."""
    # MKL reads this at its first product, and ignores it later.
    os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
    torch.set_num_threads(threads)


def reseed(seed: int) -> None:
    """Set the generators of torch, ``random`` and numpy."""
    # torch.manual_seed does the same for the CPU in a hundred times the time.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    random.seed(seed)
    np.random.seed(seed)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Leave the generators as they were, whatever is drawn meanwhile: evaluating changes no training."""
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        np.random.set_state(before[2])
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)


def make_deterministic(device: torch.device) -> None:
    """Choose deterministic kernels, where the device has others."""
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
