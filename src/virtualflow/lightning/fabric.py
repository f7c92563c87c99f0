"""Fabric keeps precision, loggers and files; a ``vf.Trainer`` has the loop. Rank zero is the job's lead worker."""

from __future__ import annotations

from typing import Any

from lightning.fabric.strategies import SingleDeviceStrategy
from lightning.fabric.utilities.rank_zero import rank_zero_only

from virtualflow.train.solo import device_type, leads


class VirtualFlowFabricStrategy(SingleDeviceStrategy):
    """``Fabric(strategy=VirtualFlowFabricStrategy())``: what Fabric does on rank zero, the job's lead does.

    The model and the optimizer that ``fabric.setup`` returns go into a ``vf.Trainer``, with ``fabric.backward``.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(device=options.pop("device", None) or device_type(), **options)

    @property
    def is_global_zero(self) -> bool:
        return self.global_rank == 0

    @property
    def global_rank(self) -> int:
        rank_zero_only.rank = 0 if leads() else 1
        return int(rank_zero_only.rank)

    @global_rank.setter
    def global_rank(self, _: int) -> None:
        """Fabric counts processes; who leads is the job's business."""

    local_rank = global_rank
