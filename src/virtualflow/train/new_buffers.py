"""Buffers that virtual nodes make in a step, or give another shape: all workers get the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from virtualflow.train.peers import Peers


@dataclass(frozen=True, slots=True)
class NewBuffer:
    """A buffer that a virtual node has made, or given another shape."""

    node: int
    tensor: Tensor
    persistent: bool

    @property
    def rank(self) -> tuple[int, int]:
        """The largest one is kept: a table that grows with the longest example. Among equals the first node's."""
        return -self.tensor.numel(), self.node


def from_all(
    peers: Peers, global_step: int, mine: Mapping[str, NewBuffer], device: torch.device
) -> dict[str, NewBuffer]:
    """Those of all workers by name; of several with one name, the one that is kept. On *device*, or on the host."""
    sent = {name: (new.node, new.tensor, new.persistent, new.tensor.device.type == "cpu") for name, new in mine.items()}
    kept: dict[str, NewBuffer] = {}
    for theirs in peers.exchanged("step", global_step, sent):
        for name, (node, tensor, persistent, on_host) in theirs.items():
            new = NewBuffer(node, tensor if on_host else tensor.to(device), persistent)
            kept[name] = min((new, kept.get(name, new)), key=lambda each: each.rank)
    return kept
