"""The update of a step where each worker updates the blocks that it holds, and sends the others the new parameters."""

from __future__ import annotations

import torch
from torch import Tensor

from virtualflow.core import faults
from virtualflow.core.blocks import Block
from virtualflow.train.accumulate import is_dense
from virtualflow.train.hollow import memory_of
from virtualflow.train.peers import Peers
from virtualflow.train.phases import updated_by
from virtualflow.train.sharded.shards import Shards
from virtualflow.train.sharded.transfers import Transfer, carry
from virtualflow.train.state import Optimizers
from virtualflow.train.step_settings import StepSettings
from virtualflow.train.update import clip


class ShardedUpdate:
    """Makes the updates of the blocks that are held here, the same ones on every holder."""

    def __init__(
        self,
        shards: Shards,
        optimizers: Optimizers,
        settings: StepSettings,
        grad_scaler: torch.amp.GradScaler | None,
        peers: Peers,
    ) -> None:
        self._shards = shards
        self._optimizers = optimizers
        self._settings = settings
        self._scaler = grad_scaler
        self._peers = peers

    def agreed(self, norm: float, global_step: int) -> float:
        """*norm*, which all workers have from the same squares."""
        return norm

    def make(self, norm: float | None, global_step: int) -> float | None:
        """Update the model; return the norm of the gradient before it was clipped. *norm* is it, still scaled."""
        assert norm is not None
        with self._shards.in_place():
            if self._scaler is not None:
                scale = self._scaler.get_scale()
                for optimizer in self._optimizers:
                    self._unscale(optimizer, global_step)
                norm /= scale
            if self._settings.clip_grad_norm is not None:
                groups = (group for optimizer in self._optimizers for group in optimizer.param_groups)
                gradients = [p.grad for group in groups for p in group["params"] if p.grad is not None]
                clip(gradients, self._settings.clip_grad_norm, norm)
            for optimizer in self._optimizers:
                if self._scaler is not None:
                    self._scaler.step(optimizer)
                else:
                    optimizer.step()
            if self._scaler is not None:
                self._scaler.update()
        faults.reach("after the update")
        self._return_parameters(global_step)
        return norm

    def _unscale(self, optimizer: torch.optim.Optimizer, global_step: int) -> None:
        """Whether a gradient is not finite is known to the holders of its block alone, and must be known to all."""
        assert self._scaler is not None
        self._scaler.unscale_(optimizer)
        found = self._scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        mine = max((float(value) for value in found.values()), default=0.0)

        def attempt() -> Tensor:
            self._peers.announce("squares", global_step).check()
            bits = torch.tensor([int(mine > 0)])
            if self._peers.group is not None:
                self._peers.group.max(bits).wait()
            return bits

        everyones = float(self._peers.agree(attempt))
        device = self._shards.device
        self._scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = {
            device: torch.full((), everyones, dtype=torch.float32, device=device)
        }

    def _return_parameters(self, global_step: int) -> None:
        """Give every worker the parameters of the blocks that it does not hold; nobody goes on before all have them."""
        if self._shards.is_replicated:
            return
        self._peers.agree(lambda: self._send_parameters(global_step))

    def _send_parameters(self, global_step: int) -> Tensor:
        self._peers.announce("parameters", global_step).check()
        group, speakers = self._peers.group, self._shards.speakers()
        if group is not None:
            transfers = []
            updated = updated_by(self._optimizers)
            cuts = self._shards.layout.cuts
            for block, speaker in speakers.items():
                if cuts[block.tensor].parameter not in updated:
                    continue  # another phase's
                length = block.elements * self._shards.layout.part(block).element_size()
                holders = self._shards.ranks_of(block)
                transfers += [
                    Transfer(speaker, rank, length, block) for rank in range(group.size) if rank not in holders
                ]
            faults.reach("parameters")
            gapped: dict[Block, Tensor] = {}  # what has arrived for parameters with gaps in their memory

            def into(block: Block) -> Tensor:
                part = self._part(block)
                return memory_of(part if is_dense(part) else gapped.setdefault(block, part.contiguous()))

            carry(transfers, group, self._shards.device, self._read, into)
            for block, values in gapped.items():
                self._part(block).copy_(values)
            # Whoever completes this knows that everyone holds all parameters.
            group.max(torch.zeros(1)).wait()
        return torch.zeros(0, dtype=torch.int64)

    def _part(self, block: Block) -> Tensor:
        return self._shards.layout.part(block).detach()

    def _read(self, block: Block) -> Tensor:
        part = self._part(block)
        return memory_of(part if is_dense(part) else part.contiguous())
