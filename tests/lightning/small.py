"""A LightningModule to train, for tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader

import lightning as L
from tests.train.small import regression


class Small(L.LightningModule):
    """Dropout, batch norm, a schedule by epoch, and metrics of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, 1))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> dict[str, Tensor]:
        loss = mse_loss(self.net(batch[0]), batch[1])
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        self.log_dict({"error": (self.net(batch[0]) - batch[1]).abs().mean()}, batch_size=len(batch[0]), on_epoch=True)
        self.log("seen", float(len(batch[0])), reduce_fx="sum", on_step=False, on_epoch=True)
        return {"loss": loss}

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = mse_loss(self.net(batch[0]), batch[1])
        self.log("val_loss", loss)
        self.log("batches", float(batch_idx), reduce_fx="max")
        return loss

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.02)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}


def training(length: int = 44) -> DataLoader[Any]:
    """Its last batch is short, so that some virtual nodes have no examples."""
    return DataLoader(regression(length), 8, shuffle=True)


def validation(length: int = 20) -> DataLoader[Any]:
    return DataLoader(regression(length), 6)


class Counting(L.Callback):
    """Keeps numbers and a tensor of its own, which a worker that joins must be told."""

    def __init__(self) -> None:
        self.batches = 0
        self.outputs: list[float] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.batches = 0
        self._average = torch.zeros(())

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.batches += 1
        self._average.mul_(0.5).add_(outputs["loss"])

    def on_validation_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.outputs.append(float(outputs))


def trainer(folder: Any, strategy: Any, *callbacks: Any, **options: Any) -> L.Trainer:
    return L.Trainer(
        strategy=strategy,
        callbacks=list(callbacks),
        default_root_dir=folder,
        enable_model_summary=False,
        log_every_n_steps=1,
        **{"enable_progress_bar": False} | options,
    )
