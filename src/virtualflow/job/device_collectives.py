"""A group's collectives between accelerators, by the library that is made for them.

Such a library raises nothing when a peer dies: a collective never ends, until it is aborted; then it ends without
a word, and its buffers hold garbage. So the coordinator's word comes first, over each worker's line: a thread aborts.
Before a result is used, the worker waits for the device, with a time limit, and checks whether it was aborted.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import Store

_log = logging.getLogger("virtualflow")


@dataclass(frozen=True, slots=True)
class Library:
    """What a type of accelerator has: torch's name for it, and variables that it reads when a group is made."""

    name: str
    variables: dict[str, str] = field(default_factory=dict)
    patience_variable: str = ""  # takes whole seconds


LIBRARIES = {
    "cuda": Library(
        "ProcessGroupNCCL",
        {
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # by default a watchdog ends a process that waits for a dead peer
            "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
            "TORCH_NCCL_ENABLE_MONITORING": "0",
            "NCCL_NVLS_ENABLE": "0",
        },
        "TORCH_NCCL_NONBLOCKING_TIMEOUT",
    ),
    "xpu": Library("ProcessGroupXCCL"),
}
LONGEST_NAP_SECONDS = 0.0005
ABORT_SECONDS = 60.0  # for an abort to free the device; it may block for a while


class DeviceCollectives:
    """The workers of one generation, once more. Aborted, it is never used again."""

    def __init__(self, device_type: str, store: Store, rank: int, size: int, patience_seconds: float) -> None:
        self._device = torch.device(device_type, torch.accelerator.current_device_index())
        self._patience_seconds = patience_seconds
        self.is_aborted = False
        self._aborting: threading.Thread | None = None
        described = LIBRARIES[device_type]
        os.environ.update(described.variables)
        if described.patience_variable:
            os.environ[described.patience_variable] = str(max(1, round(patience_seconds)))
        library = getattr(dist, described.name)
        options = library.Options()
        options._timeout = timedelta(seconds=ABORT_SECONDS)
        if hasattr(options, "config"):
            options.config.blocking = False  # one that is half formed can be left
        self._library: Any = library(store, rank, size, options)

    def connect(self) -> None:
        """Form the communicator now, and not with the first collective."""
        if hasattr(self._library, "eager_connect_single_device"):
            self._library.eager_connect_single_device(self._device)

    def start(self, collective: Callable[[Any], Any]) -> Any:
        """A collective's work."""
        return collective(self._library)

    def abort(self) -> None:
        """Free the device, from any thread, without waiting for that. What was under way leaves garbage."""
        if self._aborting is None:
            self.is_aborted = True  # first: a thread that wakes up looks at it
            self._aborting = threading.Thread(target=self._library.abort, daemon=True)
            self._aborting.start()

    def is_idle(self, is_broken: Callable[[], bool]) -> bool:
        """Wait until the device has done everything, for as long as a collective may take; False if it has not.

        Nor does it go on waiting in a group that *is_broken*.
        """
        return self._wait(self._patience_seconds, lambda: self.is_aborted or is_broken())

    def leave(self) -> None:
        """Abort, and wait until nothing can touch a buffer any more. A device that stays busy ends this worker."""
        self.abort()
        if not self._wait(ABORT_SECONDS, lambda: False):
            _log.error("a collective that was aborted still holds %s: this worker ends", self._device)
            os.kill(os.getpid(), signal.SIGKILL)

    def _wait(self, seconds: float, is_over: Callable[[], bool]) -> bool:
        # Not synchronize(): nothing ends that but the device.
        done = torch.Event(device=self._device)
        done.record(torch.accelerator.current_stream(self._device))
        deadline, nap = time.monotonic() + seconds, 0.0
        while not done.query():
            if is_over() or time.monotonic() > deadline:
                return False
            time.sleep(nap)
            nap = min(LONGEST_NAP_SECONDS, nap + 0.00001)
        return True
