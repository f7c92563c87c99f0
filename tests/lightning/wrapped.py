"""A model, its optimizer and its data as other libraries wrap them, for a vf.Trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

import virtualflow as vf
from tests.train.small import mlp, mse, regression, train

Wrapped = tuple[Any, Any, Any, Callable[..., None], Callable[[], bool]]


def plain() -> Wrapped:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return model, optimizer, DataLoader(regression(), 8, shuffle=True), torch.Tensor.backward, lambda: True


def fabric() -> Wrapped:
    from lightning.fabric import Fabric

    from virtualflow.lightning import VirtualFlowFabricStrategy

    model, optimizer, loader, *_ = plain()
    fabric = Fabric(accelerator="cpu", strategy=VirtualFlowFabricStrategy())
    return *fabric.setup(model, optimizer), loader, fabric.backward, lambda: fabric.is_global_zero


def accelerate() -> Wrapped:
    from virtualflow.accelerate import Accelerator

    model, optimizer, loader, *_ = plain()
    accelerator = Accelerator(cpu=True)
    return *accelerator.prepare(model, optimizer, loader), accelerator.backward, lambda: accelerator.is_main_process


KINDS: dict[str, Callable[[], Wrapped]] = {"plain": plain, "fabric": fabric, "accelerate": accelerate}


def digest_of(kind: str, epochs: int = 2) -> str:
    """What a plain script trains."""
    vf.seed(0)
    model, optimizer, loader, backward, is_main = KINDS[kind]()
    trainer = vf.Trainer(model, optimizer, mse, batch_size=8, virtual_nodes=4, backward=backward)
    assert is_main()
    train(trainer, loader, epochs)
    return trainer.digest()
