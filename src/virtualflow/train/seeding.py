"""Generators, threads and the settings that decide bits: all set here, from a seed that says what it is for."""

from __future__ import annotations

import ctypes
import logging
import os
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.utils import deterministic

from virtualflow.errors import ConfigError
from virtualflow.train import accelerators, solo

logger = logging.getLogger("virtualflow")


@dataclass(frozen=True, slots=True)
class Seeded:
    """The arguments of ``vf.seed``."""

    seed: int
    threads_per_device: int


_seeded: Seeded | None = None
_pinned: int | None = None
_held: tuple[torch.device, accelerators.Facts] | None = None  # settings that decide bits on an accelerator
_STRICT = 0x10000  # MKL's flag for the same bits whatever the alignment


def seed(seed: int, *, threads_per_device: int | None = None) -> None:
    """Seed every generator and pin the number of threads. Call it before the model is built.

    A CPU device is one core and so one thread, unless *threads_per_device* (or ``vf run --threads-per-device``)
    says otherwise: gradients, and even some initialisations, differ between one thread and two.
    """
    global _seeded
    launched = solo.installed()
    threads = threads_per_device or (launched.job.description.threads_per_device if launched else 1)
    pin_threads(threads)
    torch.manual_seed(seed)
    reseed(seed % 2**32)
    _seeded = Seeded(seed, threads)
    if mkl_is_strict() is False:
        logger.warning(
            "MKL was used before virtualflow was imported, or MKL_CBWR is set to something else: matrix products may "
            "differ by where their inputs lie. Import virtualflow first."
        )
    cores = os.cpu_count() or 1
    if launched is None and threads < cores:
        logger.warning(
            "a device is %d of this machine's %d cores; `vf run --devices N script.py` uses more, for the same bits",
            threads,
            cores,
        )


def seeded() -> Seeded | None:
    """The arguments of ``vf.seed`` in this process, if it was called."""
    return _seeded


def forget_seed() -> None:
    """From now on it is as if ``vf.seed`` had not been called in this process."""
    global _seeded
    _seeded = None


def pin_threads(threads: int) -> None:
    """Fix what the bits of a matrix product depend on."""
    global _pinned
    torch.set_num_threads(threads)
    _pinned = threads


def check_threads() -> None:
    """Raise an error if the script has changed the number of threads since they were pinned."""
    if _pinned is not None and torch.get_num_threads() != _pinned:
        raise ConfigError(
            f"torch runs {torch.get_num_threads()} threads, but this job has {_pinned} per device, and bits depend on "
            "their number. Call no torch.set_num_threads; say vf.seed(..., threads_per_device=N) or "
            "`vf run --threads-per-device N` instead."
        )


def mkl_is_strict() -> bool | None:
    """Whether MKL gives the same bits for any alignment in this process; None where that can't be known."""
    # Set in time or not, MKL itself knows: it reads MKL_CBWR once, at the first product or at this question.
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return bool(library.mkl_serv_cbwr_get(-1) & _STRICT)
    except (OSError, AttributeError):
        return None  # a torch without MKL


def reseed(seed: int) -> None:
    """Set the generators of torch, ``random`` and numpy."""
    # torch.manual_seed does the same for the CPU in a hundred times the time.
    torch.default_generator.manual_seed(seed)
    accelerators.seed_generators(seed)
    random.seed(seed)
    np.random.seed(seed)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Leave the generators as they were, whatever is drawn meanwhile: evaluating changes no training."""
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()
    states = accelerators.generator_states()
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        np.random.set_state(before[2])
        accelerators.set_generators(states)


def make_deterministic(device: torch.device) -> None:
    """Choose deterministic kernels, where the device has others."""
    global _held
    accelerators.make_deterministic(device)
    if device.type != "cpu" or torch.get_num_threads() > 1:
        # On several cores too: gradients of x[index] are summed by whoever comes first.
        torch.use_deterministic_algorithms(True)
        # Filling new memory costs time, and decides no bit of a right program.
        setattr(deterministic, "fill_uninitialized_memory", False)  # noqa: B010  (typed as a module without it)
    _held = device, accelerators.settings(device)


def check_settings() -> None:
    """Raise an error if the script has changed something that decides bits since a Trainer was made."""
    check_threads()
    if _held is None:
        return
    device, before = _held
    now = accelerators.settings(device)
    for name, value in before.items():
        if now[name] != value:
            raise ConfigError(
                f"{name} was {value} when the Trainer was made, and is {now[name]} now: bits depend on it, and workers "
                'that join would have another one. Set it before the Trainer is made, or use reduction="fast".'
            )


def determinism_advice(node: int, global_step: int, error: BaseException) -> str | None:
    """What to do about an operator that has no deterministic kernel, if *error* is torch's refusal of one."""
    reason = str(error).partition(". ")[0]
    place = f"in step {global_step}, virtual node {node}: {reason}."
    if (operation := re.search(r"(\S+) does not have a deterministic implementation", reason)) is not None:
        return (
            f"{place} It gives other bits on the same inputs, so the job would not be the same twice. Replace "
            f'{operation[1]} in the model or in loss_fn by something deterministic, or use reduction="fast", which is '
            "equal up to rounding."
        )
    if "not deterministic because it uses CuBLAS" in reason:
        return (
            f"{place} CUBLAS_WORKSPACE_CONFIG is {os.environ.get('CUBLAS_WORKSPACE_CONFIG')!r}. It is set when "
            "virtualflow is imported, unless it has another value or CUDA is in use by then: import virtualflow first."
        )
    return None
