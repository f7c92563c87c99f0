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

import os
from pathlib import Path

SITE = Path(__file__).parent / "site"
VARIABLE = "FAKECUDA_DEVICES"


def environment(devices: int) -> dict[str, str]:
    """The variables of a process that has so many CUDA devices."""
    path = [str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {VARIABLE: str(devices), "PYTHONPATH": os.pathsep.join(path)}
