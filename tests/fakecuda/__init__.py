"""A CUDA device for tests, on a machine that has none and with a torch that was built without CUDA.

``device.cpp`` gives torch's CUDA dispatch key to kernels that run on the CPU; ``install`` gives ``torch.cuda`` what it
needs from C++; ``nccl`` is NCCL as it is when a peer dies. So code written for CUDA runs unmodified, with the bits of
the CPU.

It must be loaded before torch, which reads its hooks once. A process whose environment comes from ``environment`` does
that by itself, and so do its children: ``site/sitecustomize.py`` sees to it.

What it can't show: kernels run as they are launched, so races between streams don't show; C code can read device
memory; there are no CUDA graphs and no IPC.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

SITE = Path(__file__).parent / "site"
RUN_AGAIN = [  # tests without jobs, for a process that has the device
    Path(__file__).parents[1] / "train" / f"test_{name}.py"
    for name in ("checkpoint", "committed", "features", "inference", "losses", "replay", "step")
]
DEVICES = 10  # as many as any job of a test has
VARIABLE = "FAKECUDA_DEVICES"
MACHINE = "FAKECUDA_MACHINE"


_machines = itertools.count()


def environment(devices: int) -> dict[str, str]:
    """The variables of a process on a new machine with so many CUDA devices: no other test ever has one of them."""
    path = [str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
    machine = f"{os.getpid()}-{next(_machines)}"
    return {VARIABLE: str(devices), MACHINE: machine, "PYTHONPATH": os.pathsep.join(path)}
