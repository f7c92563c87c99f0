"""State that is spread over devices comes together on the lead, tensor by tensor, to be hashed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from virtualflow.train.committed import Live
from virtualflow.train.peers import Peers
from virtualflow.train.position import Loop
from virtualflow.train.sharded.shards import Shards
from virtualflow.train.state import contents, flattened, hashed


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
    for name, state in shards.collected(sorted(live.parts.parameters())):
        for key, value in sorted(state.items()):
            yield from flattened(value, f"optimizer {key} of {name}")
