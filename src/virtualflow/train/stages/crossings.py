"""Activations and their gradients on their way between two stages that run on two devices.

They travel as plain bytes. A header of fixed length says what follows: gloo would end the process of a receiver that
gets more than it expects. Headers are asked for before a step begins, since a message is sent only once it is.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from virtualflow.core.cell_schedule import FORWARD, CellRun
from virtualflow.core.membership import Group, Work
from virtualflow.errors import LossError
from virtualflow.train.accumulate import is_dense

HEADER_LENGTH = 256
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


class Crossings:
    """What this worker gets from others in one attempt at a step, and gives to them. *group* is None for one alone."""

    def __init__(self, group: Group | None, virtual_nodes: int, device: torch.device) -> None:
        self._group = group
        self._virtual_nodes = virtual_nodes
        self._device = device
        self._expected: dict[CellRun, list[tuple[int, Tensor, Work]]] = {}
        self._sent: dict[CellRun, list[tuple[Work, Tensor]]] = {}

    def expect(self, run: CellRun, source: int) -> None:
        """The worker of rank *source* will send what *run* needs."""
        assert self._group is not None
        header = torch.empty(HEADER_LENGTH, dtype=torch.int64)
        work = self._group.receive(header, source, self._tag(run))
        self._expected.setdefault(run, []).append((source, header, work))

    def obtain(self, run: CellRun) -> Crossing:
        """What *run* needs, as soon as it is here."""
        assert self._group is not None
        source, header, work = self._expected[run].pop(0)
        work.wait()
        tensors: Crossing = []
        works = []
        for place, (code, shape, stride) in enumerate(_described(header.tolist())):
            if code == _NOTHING:
                tensors.append(None)
                continue
            tensor = torch.empty_strided(shape, stride, dtype=_DTYPES[code], device=self._device)
            tensors.append(tensor)
            if tensor.numel():
                works.append(self._group.receive(_memory(tensor), source, self._tag(run) + 1 + place))
        for work in works:
            work.wait()
        return tensors

    def ship(self, tensors: Crossing, run: CellRun, to: int) -> None:
        """Give *tensors* to the worker of rank *to*, which needs them for *run*."""
        assert self._group is not None
        header = torch.tensor(_header(tensors), dtype=torch.int64)
        sent = self._sent.setdefault(run, [])
        sent.append((self._group.send(header, to, self._tag(run)), header))
        for place, tensor in enumerate(tensors):
            if tensor is not None and tensor.numel():
                memory = _memory(tensor)
                sent.append((self._group.send(memory, to, self._tag(run) + 1 + place), memory))

    def arrived(self, run: CellRun) -> None:
        """What was shipped for *run* has been used over there: its memory is free."""
        for work, _ in self._sent.pop(run, ()):
            work.wait()

    def finish(self) -> None:
        """Wait until all that was shipped has arrived."""
        for run in list(self._sent):
            self.arrived(run)

    def _tag(self, run: CellRun) -> int:
        cell = run.stage * self._virtual_nodes + run.node
        return (MOST_TENSORS + 1) * (2 * cell + (run.direction == FORWARD))


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


def _memory(dense: Tensor) -> Tensor:
    return dense.as_strided((math.prod(dense.shape),), (1,)).view(torch.uint8)
