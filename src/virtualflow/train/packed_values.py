"""Values of any size, as bytes that workers can gather: tensors, plain values, and containers of them."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import Tensor

from virtualflow.core.membership import Group


def gather_packed(value: Any, group: Group | None) -> Tensor:
    """Every worker's *value* as bytes, one worker's after another's: the length of each, then itself."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    packed = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
    length = torch.tensor([len(packed)])
    if group is None:
        return torch.cat([length.view(torch.uint8), packed])
    lengths = [torch.empty_like(length) for _ in range(group.size)]
    group.gather(length, lengths).wait()
    padded = torch.zeros(max(int(size) for size in lengths), dtype=torch.uint8)
    padded[: len(packed)] = packed
    parts = [torch.empty_like(padded) for _ in range(group.size)]
    group.gather(padded, parts).wait()
    pieces = [(size.view(torch.uint8), part[: int(size)]) for size, part in zip(lengths, parts, strict=True)]
    return torch.cat([piece for pair in pieces for piece in pair])


def unpacked(packed: Tensor) -> list[Any]:
    """What ``gather_packed`` has gathered, with its tensors on the host."""
    contents = packed.numpy().tobytes()
    values = []
    start = 0
    while start < len(contents):
        end = start + 8 + int.from_bytes(contents[start : start + 8], "little")
        values.append(torch.load(io.BytesIO(contents[start + 8 : end]), weights_only=True, map_location="cpu"))
        start = end
    return values
