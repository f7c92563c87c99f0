"""Activations and their gradients on their way between two stages that run on two devices.

They travel as plain bytes, in one message, after a header that says what follows. Gloo would end the process of a
receiver that gets more than it expects, so a message is as long as both ends know the last one to have been; what does
not fit comes in another. Receives are posted ahead, so that messages arrive beside the computation.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import torch
from torch import Tensor

from virtualflow.core.cell_schedule import FORWARD, CellRun
from virtualflow.core.membership import Group, Work
from virtualflow.errors import LossError
from virtualflow.train.accumulate import is_dense

HEADER_LENGTH = 256  # integers
HEADER_BYTES = 8 * HEADER_LENGTH
AHEAD = 2  # receives that are posted before they are needed: each takes memory
MOST_TENSORS = 15  # that one stage hands to the next
ALIGNMENT_BYTES = 64
_DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)
_NOTHING = len(_DTYPES)  # a gradient that is None

Crossing = list[Tensor | None]


class MessageSizes:
    """How many bytes follow a header in one message: as many as all know that such a crossing had last time."""

    def __init__(self) -> None:
        self._known: dict[CellRun, int] = {}
        self._seen: dict[CellRun, int] = {}

    def of(self, run: CellRun) -> int:
        return self._known.get(run, 0)

    def note(self, run: CellRun, size: int) -> None:
        """One end of a crossing has seen its size."""
        self._seen[run] = size

    def all_know(self) -> None:
        """The attempt has come to its end on all workers, and so has each crossing at both ends."""
        self._known |= self._seen
        self._seen.clear()

    def forget(self) -> None:
        """There are other workers than before."""
        self._known.clear()
        self._seen.clear()


class Crossings:
    """What this worker gets from others in one attempt at a step, and gives to them. *group* is None for one alone."""

    def __init__(self, group: Group | None, virtual_nodes: int, device: torch.device, sizes: MessageSizes) -> None:
        self._group = group
        self._virtual_nodes = virtual_nodes
        self._device = device
        self._sizes = sizes
        self._expected: deque[tuple[CellRun, int]] = deque()
        self._posted: deque[tuple[CellRun, int, Tensor, Work]] = deque()
        self._sent: dict[CellRun, list[tuple[Work, Tensor]]] = {}

    def expect(self, run: CellRun, source: int) -> None:
        """The worker of rank *source* will send what *run* needs; they are obtained in the order of these calls."""
        self._expected.append((run, source))
        self._post()

    def obtain(self, run: CellRun) -> Crossing:
        """What *run* needs, as soon as it is here."""
        assert self._group is not None
        expected, source, message, work = self._posted.popleft()
        assert expected == run
        self._post()
        work.wait()
        described = _described(message[:HEADER_BYTES].view(torch.int64).tolist())
        places, size = _places(described)
        if (missing := HEADER_BYTES + size - len(message)) > 0:
            whole = torch.empty(HEADER_BYTES + size, dtype=torch.uint8)
            whole[: len(message)] = message
            self._group.receive(whole[-missing:], source, self._tag(run) + 1).wait()
            message = whole
        self._sizes.note(run, size)
        return [
            None if code == _NOTHING else self._tensor(message, HEADER_BYTES + place, _DTYPES[code], shape, stride)
            for (code, shape, stride), place in zip(described, places, strict=True)
        ]

    def ship(self, tensors: Crossing, run: CellRun, to: int) -> None:
        """Give *tensors* to the worker of rank *to*, which needs them for *run*."""
        assert self._group is not None
        first = HEADER_BYTES + self._sizes.of(run)
        message, size = _message(tensors, at_least=first)
        sent = self._sent.setdefault(run, [])
        sent.append((self._group.send(message[:first], to, self._tag(run)), message))
        if len(message) > first:
            sent.append((self._group.send(message[first:], to, self._tag(run) + 1), message))
        self._sizes.note(run, size)

    def arrived(self, run: CellRun) -> None:
        """What was shipped for *run* has been used over there: its memory is free."""
        for work, _ in self._sent.pop(run, ()):
            work.wait()

    def finish(self) -> None:
        """Wait until all that was shipped has arrived."""
        for run in list(self._sent):
            self.arrived(run)

    def _post(self) -> None:
        assert self._group is not None
        while self._expected and len(self._posted) < AHEAD:
            run, source = self._expected.popleft()
            message = torch.empty(HEADER_BYTES + self._sizes.of(run), dtype=torch.uint8)
            self._posted.append((run, source, message, self._group.receive(message, source, self._tag(run))))

    def _tag(self, run: CellRun) -> int:
        cell = run.stage * self._virtual_nodes + run.node
        return 2 * (2 * cell + (run.direction == FORWARD))

    def _tensor(self, message: Tensor, at: int, dtype: torch.dtype, shape: list[int], stride: list[int]) -> Tensor:
        """A tensor in the memory of *message*, but no view of it: what is written to one says nothing of the others."""
        tensor = torch.empty(0, dtype=dtype)
        tensor.set_(message.untyped_storage(), at // dtype.itemsize, shape, stride)
        if self._device.type == "cpu":
            return tensor
        return torch.empty_strided(shape, stride, dtype=dtype, device=self._device).copy_(tensor)


def crossing(tensor: Tensor) -> Tensor:
    """*tensor* as it crosses from one stage to the next: the same whether it stays on its device or travels.

    Dense, and aligned, since kernels give other bits for other strides and alignments. Integers get memory of their
    own, which the next stage may write.
    """
    tensor = tensor.detach()
    if not tensor.is_floating_point():
        return tensor.clone(memory_format=torch.contiguous_format)
    if is_dense(tensor) and tensor.data_ptr() % ALIGNMENT_BYTES == 0:
        return tensor
    return tensor.clone(memory_format=torch.preserve_format if is_dense(tensor) else torch.contiguous_format)


def outputs_of(output: Any, stage: int) -> list[Tensor]:
    """The tensors that *stage* has returned for the next one."""
    tensors = list(output) if isinstance(output, tuple | list) else [output]
    if not tensors or len(tensors) > MOST_TENSORS or not all(isinstance(tensor, Tensor) for tensor in tensors):
        raise LossError(
            f"stage {stage} returned {_named(output)}, expected a tensor, or a tuple of 1 to {MOST_TENSORS} tensors."
        )
    if odd := [tensor.dtype for tensor in tensors if tensor.dtype not in _DTYPES]:
        raise LossError(f"stage {stage} returned a tensor of type {odd[0]}, which can't travel to another device.")
    return tensors


def _named(output: Any) -> str:
    if isinstance(output, tuple | list):
        return f"a {type(output).__name__} of {', '.join(type(item).__name__ for item in output) or 'nothing'}"
    return f"a value of type {type(output).__name__}"


def _header(tensors: Crossing) -> list[int]:
    numbers = [len(tensors)]
    for tensor in tensors:
        if tensor is None:
            numbers += [_NOTHING, 0]
        else:
            numbers += [_DTYPES.index(tensor.dtype), tensor.dim(), *tensor.shape, *tensor.stride()]
    if len(numbers) > HEADER_LENGTH:
        raise LossError("a stage handed over tensors with too many dimensions for one message")
    return numbers + [0] * (HEADER_LENGTH - len(numbers))


def _described(numbers: list[int]) -> list[tuple[int, list[int], list[int]]]:
    """For each tensor its type, shape and strides."""
    found = []
    at = 1
    for _ in range(numbers[0]):
        code, dim = numbers[at], numbers[at + 1]
        shape, stride = numbers[at + 2 : at + 2 + dim], numbers[at + 2 + dim : at + 2 + 2 * dim]
        found.append((code, shape, stride))
        at += 2 + 2 * dim
    return found


def _message(tensors: Crossing, at_least: int) -> tuple[Tensor, int]:
    """The header of *tensors*, and their memories, each where kernels like it; and how much comes after the header."""
    header = _header(tensors)
    places, size = _places(_described(header))
    message = torch.empty(max(HEADER_BYTES + size, at_least), dtype=torch.uint8)
    message[:HEADER_BYTES].view(torch.int64).copy_(torch.tensor(header))
    for tensor, place in zip(tensors, places, strict=True):
        if tensor is not None and tensor.numel():
            memory = _memory(tensor)
            message[HEADER_BYTES + place :][: len(memory)].copy_(memory)
    return message, size


def _places(described: list[tuple[int, list[int], list[int]]]) -> tuple[list[int], int]:
    """Where each tensor begins after the header, and where the last one ends."""
    places, end = [], 0
    for code, shape, _ in described:
        places.append(-(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)
        if code != _NOTHING:
            end = places[-1] + math.prod(shape) * _DTYPES[code].itemsize
    return places, end


def _memory(dense: Tensor) -> Tensor:
    return dense.as_strided((math.prod(dense.shape),), (1,)).view(torch.uint8)
