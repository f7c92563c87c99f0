"""State that is spread over devices comes together on the lead, tensor by tensor: to be hashed, or written down."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from virtualflow.errors import CheckpointError
from virtualflow.train.committed import Live
from virtualflow.train.peers import Peers
from virtualflow.train.position import Loop
from virtualflow.train.sharded.shards import Shards
from virtualflow.train.state import contents, flattened, hashed

_SMALL = 4096  # elements


def job_digest(live: Live, loop: Loop, peers: Peers) -> str:
    """The digest of the job. If its state is spread over devices, this is a call that all workers make."""
    shards = live.shards
    # A worker that is on its way to where the job is can't make calls with the others: it hashes what it has.
    on_the_way = peers.membership.joining or (loop.entering is not None and not loop.is_resumed)
    if shards is None or on_the_way:
        return live.digest(loop.position.global_step)

    def attempt() -> Tensor:
        peers.announce("digest", loop.position.global_step).check()
        mine = hashed(_contents(live, shards))
        shared = torch.frombuffer(bytearray.fromhex(mine), dtype=torch.uint8)
        if peers.group is not None:
            peers.group.broadcast(shared, 0).wait()
        return shared

    return bytes(peers.agree(attempt).tolist()).hex()


def _contents(live: Live, shards: Shards) -> Iterator[tuple[str, Any]]:
    """As ``state.contents``; only the lead's are whole."""
    yield from contents(live.parts, ())
    for name, state in shards.collected(sorted(live.parts.parameters()), _in_memory):
        for key, value in sorted(state.items()):
            yield from flattened(value, f"optimizer {key} of {name}")


def collected_optimizers(live: Live, shards: Shards, folder: Path) -> list[dict[str, Any]]:
    """The state_dicts of all optimizers, whole on the lead. Large tensors lie in files in *folder*, already deleted."""
    parameters = live.parts.parameters()
    names = {parameter: name for name, parameter in parameters.items()}

    failures: list[OSError | RuntimeError] = []

    def spill(like: Tensor, dtype: torch.dtype) -> Tensor:
        try:
            return _in_file(like, dtype, folder)
        except (OSError, RuntimeError) as error:
            failures.append(error)  # later: the others go on sending
            return _in_memory(like, dtype)

    def kept(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.numel() < _SMALL or value.is_shared():
            return value
        return spill(value, value.dtype).copy_(value)

    states = {name: tree_map(kept, state) for name, state in shards.collected(parameters, spill) if state}
    if failures:
        raise CheckpointError(f"cannot write to {folder}: {failures[0]}") from failures[0]
    dicts = []
    for optimizer in live.optimizers:
        order = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
        state = {number: states[name] for number, name in enumerate(order) if name in states}
        dicts.append({**optimizer.state_dict(), "state": state})
    return dicts


def _in_memory(like: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(like.shape, like.stride(), dtype=dtype)


def _in_file(like: Tensor, dtype: torch.dtype, folder: Path) -> Tensor:
    """Memory that the system can put on a disk: no device needs as much as all of the state takes."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, path = tempfile.mkstemp(dir=folder, prefix=".collected-")
    try:
        os.posix_fallocate(descriptor, 0, like.numel() * dtype.itemsize)
        flat = torch.from_file(path, shared=True, size=like.numel(), dtype=dtype)
    finally:
        os.close(descriptor)
        os.unlink(path)
    return flat.as_strided(like.shape, like.stride())
