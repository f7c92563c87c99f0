"""NCCL's process group, over gloo: above all, what it does when a peer dies, which is nothing.

A collective whose peer is gone never ends, on any rank, and raises nothing. ``abort`` ends it: its buffers then hold
garbage, and ``wait`` still raises nothing. If nobody aborts, the watchdog ends the process after the timeout, unless
TORCH_NCCL_ASYNC_ERROR_HANDLING=0.
"""

from __future__ import annotations

import ctypes
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

NEVER = timedelta(days=1)
WATCH_SECONDS = 0.1
GARBAGE = 0xCB
counts = {"collectives": 0, "bytes_in_collectives": 0}  # of this process; what each sends depends on the algorithm
Run = Callable[[Any], Sequence[Tensor]]  # over gloo, on copies; returns what the outputs become


class _Config:
    blocking = True


class Options:
    """As much of NCCL's as is used."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self._timeout = timedelta(minutes=10)
        self.config = _Config()
        self.group_name = ""
        self.global_ranks_in_group: list[int] = []


class Work(dist.Work):
    """A collective under way. NCCL makes the stream wait and lets the host go on; here the host waits."""

    def __init__(self, outputs: Sequence[Tensor], written: Sequence[Tensor]) -> None:
        super().__init__()
        self.outputs = list(outputs)
        self.written = list(written)  # by the device, as long as it runs: of a broadcast, not the one it comes from
        self.ended = threading.Event()
        self.began = time.monotonic()

    def wait(self, timeout: timedelta | None = None) -> bool:
        self.ended.wait()
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self.ended.is_set()

    def exception(self) -> None:
        return None


class ProcessGroupNCCL(dist.ProcessGroup):
    """Runs collectives in order, in a thread that stands for a stream; and never past one that can't end."""

    Options = Options

    def __init__(self, store: dist.Store, rank: int, size: int, options: Options | None = None) -> None:
        super().__init__(rank, size)
        self._store, self._rank, self._size = store, rank, size
        self.options = options or Options()
        self.aborted = False
        self._queue: queue.SimpleQueue[tuple[Run, Work] | None] = queue.SimpleQueue()
        self._pending: set[Work] = set()
        self._guard = threading.Lock()
        self._has_begun = False

    def getBackendName(self) -> str:  # noqa: N802
        return "nccl"

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def eager_connect_single_device(self, device: torch.device | None = None) -> None:
        """Form the communicator now, and not with the first collective."""
        self._start(lambda gloo: [], []).wait()

    def abort(self) -> None:
        """End all collectives, without a word, with garbage in their buffers."""
        with self._guard:
            self.aborted = True
            pending, self._pending = self._pending, set()
        for work in pending:
            for tensor in work.written:
                _spoil(tensor)
            work.ended.set()
        self._queue.put(None)

    def shutdown(self) -> None:
        self.abort()

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Work:
        def run(gloo: Any) -> list[Tensor]:
            copy = host_view(tensors[0]).clone()
            gloo.allreduce([copy], opts or dist.AllreduceOptions()).wait()
            return [copy]

        return self._start(run, tensors)

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> Work:
        def run(gloo: Any) -> list[Tensor]:
            copy = host_view(tensors[0]).clone()
            gloo.broadcast([copy], opts or dist.BroadcastOptions()).wait()
            return [copy]

        is_source = self._rank == (opts.rootRank if opts is not None else 0)
        return self._start(run, tensors, written=[] if is_source else tensors)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Work:
        def run(gloo: Any) -> list[Tensor]:
            copies = [host_view(tensor).clone() for tensor in outputs[0]]
            gloo.allgather([copies], [host_view(inputs[0]).clone()]).wait()
            return copies

        return self._start(run, outputs[0], inputs)

    def alltoall_base(
        self, output: Tensor, input: Tensor, output_sizes: list[int], input_sizes: list[int], opts: Any = None
    ) -> Work:
        def run(gloo: Any) -> list[Tensor]:
            into, sent = host_view(output).clone(), host_view(input).clone()
            gloo.alltoall_base(into, sent, output_sizes, input_sizes, dist.AllToAllOptions()).wait()
            return [into]

        return self._start(run, [output], [input])

    def barrier(self, opts: Any = None) -> Work:
        def run(gloo: Any) -> list[Tensor]:
            gloo.barrier().wait()
            return []

        return self._start(run, [])

    def _start(
        self,
        run: Run,
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor] = (),
        written: Sequence[Tensor] | None = None,
    ) -> Work:
        if not all(tensor.is_cuda for tensor in (*outputs, *inputs)):
            raise ValueError("Tensors must be CUDA and dense")
        work = Work(outputs, outputs if written is None else written)
        with self._guard:
            counts["collectives"] += bool(outputs)
            counts["bytes_in_collectives"] += sum(tensor.nbytes for tensor in inputs or outputs)
            if self.aborted:
                raise dist.DistBackendError(f"NCCL communicator was aborted on rank {self._rank}.")
            self._pending.add(work)
            if not self._has_begun:
                self._has_begun = True
                threading.Thread(target=self._serve, daemon=True).start()
                threading.Thread(target=self._watch, daemon=True).start()
        self._queue.put((run, work))
        return work

    def _serve(self) -> None:
        try:
            gloo = dist.ProcessGroupGloo(self._store, self._rank, self._size, NEVER)
            while (task := self._queue.get()) is not None:
                run, work = task
                results = run(gloo)
                with self._guard:
                    if self.aborted:
                        return
                    for tensor, result in zip(work.outputs, results, strict=True):
                        host_view(tensor).copy_(result)
                    self._pending.discard(work)
                work.ended.set()
        except RuntimeError:
            return  # a peer is gone: from here on nothing ends by itself

    def _watch(self) -> None:
        if os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3") == "0":
            return
        while not self.aborted:
            time.sleep(WATCH_SECONDS)
            with self._guard:
                began = min((work.began for work in self._pending), default=time.monotonic())
            if time.monotonic() - began > self.options._timeout.total_seconds():
                text = f"[rank{self._rank}] Watchdog caught collective operation timeout: taking the process down"
                print(text, file=sys.stderr, flush=True)
                os.abort()


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def host_view(tensor: Tensor) -> Tensor:
    """The memory of a CUDA tensor, as a CPU tensor."""
    capsule = torch._C._to_dlpack(tensor.detach())
    described = _DLTensor.from_address(_pointer(capsule, b"dltensor"))
    described.device_type, described.device_id = 1, 0
    view: Tensor = torch._C._from_dlpack(capsule)
    return view


def _spoil(tensor: Tensor) -> None:
    view = host_view(tensor)
    if view.numel() and view.is_contiguous():
        view.view(torch.uint8).fill_(GARBAGE)


def install() -> None:
    """Be ``torch.distributed.ProcessGroupNCCL``."""
    distributed: Any = dist
    distributed.ProcessGroupNCCL = distributed.distributed_c10d.ProcessGroupNCCL = ProcessGroupNCCL
