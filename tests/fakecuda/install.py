"""Makes this process one with CUDA devices. To be imported before torch."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.fakecuda import MACHINE, build

assert "torch" not in sys.modules, "the CUDA device for tests must be loaded before torch, which looks for it once"

for _needed in ("libgomp.so.1", "libc10.so", "libtorch_cpu.so"):
    ctypes.CDLL(str(build.torch_folder() / "lib" / _needed), mode=ctypes.RTLD_GLOBAL)


def _visible(count: int) -> list[int]:
    """The devices that CUDA_VISIBLE_DEVICES names, by index or UUID, up to the first that does not exist."""
    if (text := os.environ.get("CUDA_VISIBLE_DEVICES")) is None:
        return list(range(count))
    names = {name: index for index in range(count) for name in (str(index), uuid_of(index))}
    return [names[word.strip()] for word in itertools.takewhile(lambda word: word.strip() in names, text.split(","))]


def uuid_of(index: int) -> str:
    """The UUID of a device, whichever are visible: another one in each machine that tests make up."""
    return f"GPU-fake-{os.environ.get(MACHINE, 'a')}-{index}"


_all = os.environ["FAKECUDA_DEVICES"]
_shown = _visible(int(_all))
os.environ["FAKECUDA_DEVICES"] = str(len(_shown))
_device = ctypes.CDLL(str(build.library()), mode=ctypes.RTLD_GLOBAL)
os.environ["FAKECUDA_DEVICES"] = _all
_device.fakecuda_journal.restype = ctypes.c_char_p
_device.fakecuda_set_capacity.argtypes = [ctypes.c_int, ctypes.c_int64]
_device.fakecuda_pace.argtypes = [ctypes.c_int64, ctypes.c_int64]

import torch  # noqa: E402

COUNTS = (
    "launches",
    "implicit_syncs",
    "explicit_syncs",
    "to_device",
    "to_host",
    "on_device",
    "bytes",
    "bytes_to_device",
    "bytes_to_host",
)


class _Stream:  # a class, since libraries name it in annotations
    def __new__(cls, device: Any = None, priority: int = 0) -> torch.Stream:  # type: ignore[misc]
        return torch.Stream(device=torch.device("cuda", _index(device)))


def counts() -> dict[str, int]:
    """What this process has launched, waited for, copied and given to collectives so far."""
    values = (ctypes.c_int64 * len(COUNTS))()
    _device.fakecuda_counts(values)
    return dict(zip(COUNTS, values, strict=True)) | nccl.counts


@contextlib.contextmanager
def counting() -> Iterator[dict[str, int]]:
    """What the block launches, waits for and copies."""
    before, found = counts(), dict.fromkeys(counts(), 0)
    yield found
    found.update({name: count - before[name] for name, count in counts().items()})


@contextlib.contextmanager
def launched() -> Iterator[list[str]]:
    """The operators that the block launches, in order."""
    names: list[str] = []
    _device.fakecuda_start_journal(1)
    yield names
    names.extend(_device.fakecuda_journal().decode().split())
    _device.fakecuda_start_journal(0)


def pace(kernel_microseconds: float = 0.0, gigabytes_per_second: float = 0.0) -> None:
    """How long the device takes for a kernel and for what it touches; nothing, until this is called."""
    picoseconds = int(1000 / gigabytes_per_second) if gigabytes_per_second else 0
    _device.fakecuda_pace(int(kernel_microseconds * 1000), picoseconds)


def catch_up() -> None:
    """Have every stream done with what it was given: a test that has seen what it wanted need not wait for the rest."""
    _device.fakecuda_catch_up()


def set_capacity(device: int, size_bytes: int) -> None:
    """How much memory a device has."""
    _device.fakecuda_set_capacity(device, size_bytes)


@dataclass(frozen=True)
class _Properties:
    uuid: str = ""
    name, major, minor = "Fake GPU", 9, 0
    total_memory, multi_processor_count = 8 << 30, 1
    gcnArchName = ""  # noqa: N815  (torch's name for it)


_process_with_cuda: list[int] = []  # the one that has initialised CUDA: a fork of it must not use it


def _index(device: Any = None) -> int:
    if isinstance(device, int):
        return device
    index = torch.device(device).index if device is not None else None
    return int(_device.fakecuda_current_device()) if index is None else index


def _memory(device: Any, which: int) -> int:
    values = (ctypes.c_int64 * 3)()
    _device.fakecuda_memory(_index(device), values)
    return values[which]


def _free_and_all(device: Any = None) -> tuple[int, int]:
    capacity = min(_Properties.total_memory, _memory(device, 2))
    return capacity - _memory(device, 0), capacity


def _initialise() -> None:
    if _is_in_bad_fork():
        raise RuntimeError(
            "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the "
            "'spawn' start method"
        )
    _process_with_cuda[:] = [os.getpid()]


def _is_in_bad_fork() -> bool:
    return bool(_process_with_cuda) and _process_with_cuda[0] != os.getpid()


def _exchange(index: int) -> int:
    before = int(_device.fakecuda_current_device())
    if index >= 0:
        _device.fakecuda_set_device(index)
    return before


def _default_generators() -> tuple[torch.Generator, ...]:
    _device.fakecuda_hand_out_defaults(1)
    made = tuple(torch.Generator(device=f"cuda:{index}") for index in range(_device.fakecuda_device_count()))
    _device.fakecuda_hand_out_defaults(0)
    return made


def _patch_bindings(bindings: Any) -> None:
    """What ``torch.cuda`` calls in C++. (Lambdas, since dynamo wants functions with a hash.)"""
    bindings._cuda_init = _initialise
    bindings._cuda_getDeviceCount = lambda: _device.fakecuda_device_count()
    bindings._cuda_getDevice = lambda: _device.fakecuda_current_device()
    bindings._cuda_setDevice = lambda index: _device.fakecuda_set_device(index)
    bindings._cuda_exchangeDevice = bindings._cuda_maybeExchangeDevice = _exchange
    bindings._cuda_synchronize = lambda: torch.accelerator.synchronize(_device.fakecuda_current_device())
    bindings._cuda_set_sync_debug_mode = lambda mode: _device.fakecuda_set_sync_mode(mode)
    bindings._cuda_get_sync_debug_mode = lambda: _device.fakecuda_sync_mode()
    bindings._cuda_getCurrentRawStream = lambda index: 0
    bindings._cuda_getArchFlags = lambda: "sm_90"
    bindings._cuda_isCurrentStreamCapturing = lambda: False
    bindings._cuda_isInBadFork = _is_in_bad_fork


def _patch_cuda(cuda: Any) -> None:
    """What of ``torch.cuda`` can't do with ``_patch_bindings`` alone."""
    cuda._cudart = object()
    cuda._exchange_device = cuda._maybe_exchange_device = _exchange
    cuda._is_in_bad_fork = _is_in_bad_fork
    cuda.is_current_stream_capturing = lambda: False
    cuda.device_count = lambda: _device.fakecuda_device_count()
    cuda.get_device_properties = lambda device=None: _Properties(uuid_of(_shown[_index(device)]))
    cuda.get_device_capability = lambda device=None: (_Properties.major, _Properties.minor)
    cuda.memory_allocated = lambda device=None: _memory(device, 0)
    cuda.memory_reserved = cuda.memory_allocated
    cuda.max_memory_allocated = lambda device=None: _memory(device, 1)
    cuda.reset_peak_memory_stats = lambda device=None: _device.fakecuda_reset_peak(_index(device))
    cuda.mem_get_info = _free_and_all
    cuda.empty_cache = lambda: None
    cuda.Stream = _Stream
    cuda.Event = lambda enable_timing=False, **_: torch.Event(device="cuda", enable_timing=enable_timing)
    cuda.current_stream = lambda device=None: torch.accelerator.current_stream(_index(device))
    cuda.default_stream = lambda device=None: torch.Stream(stream_id=0, device_index=_index(device), device_type=1)
    cuda.set_stream = torch.accelerator.set_stream
    cuda.stream = lambda stream: stream if stream is not None else contextlib.nullcontext()
    cuda.default_generators = _default_generators()


def _patch_storage(storage: Any) -> None:
    """``torch.UntypedStorage(device="cuda")`` is compiled out of a torch without CUDA."""
    clone, to = storage.clone, storage.to

    def copied(self: Any, device: Any, non_blocking: bool = False) -> Any:
        made = torch.empty(self.nbytes(), dtype=torch.uint8, device=device).untyped_storage()
        return made.copy_(self, non_blocking)

    def to_device(self: Any, *, device: Any, non_blocking: bool = False) -> Any:
        on_cuda = torch.device(device).type == "cuda"
        return copied(self, device, non_blocking) if on_cuda else to(self, device=device, non_blocking=non_blocking)

    storage.clone = lambda self: copied(self, self.device) if self.device.type == "cuda" else clone(self)
    storage.to = to_device
    storage.cuda = lambda self, device=None, non_blocking=False: copied(
        self, torch.device("cuda", _index(device)), non_blocking
    )


_patch_bindings(torch._C)
_patch_cuda(torch.cuda)
_patch_storage(torch.storage._StorageBase)
torch.backends.cudnn.is_acceptable = lambda tensor: False  # for recurrent layers; torch's own warns that it is missing

from tests.fakecuda import nccl  # noqa: E402

nccl.install()
