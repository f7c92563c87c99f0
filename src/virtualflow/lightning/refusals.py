"""What can't hold under VirtualFlow's strategy, refused by its name before anything trains."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Trainer, callbacks
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch.utils.data import DataLoader

from virtualflow.errors import ConfigError

_CALLBACKS = {
    callbacks.Timer: "it stops by a clock, and each worker has its own. Use max_steps, or `vf stop`.",
    callbacks.GradientAccumulationScheduler: "give the DataLoader the whole batch: virtual nodes split it.",
    callbacks.BatchSizeFinder: "the batch size decides the result. Choose it before the job starts.",
    callbacks.LearningRateFinder: "it trains on the way. Find the rate in a run of its own.",
    callbacks.StochasticWeightAveraging: "its second model is not part of the job. Average in a vf.Trainer's state=.",
    callbacks.WeightAveraging: "its second model is not part of the job. Average in a vf.Trainer's state=.",
}


def check(trainer: Trainer, module: Any) -> None:
    """Raise ConfigError for what *trainer* and *module* ask for and can't have."""
    connector = trainer._accelerator_connector
    refused = {
        "automatic_optimization=False": (
            not module.automatic_optimization,
            "a training_step that steps its optimizers itself can't be split over virtual nodes. Use a vf.Trainer with "
            'phases: vf.Trainer(models, {"d": (opt_d, d_loss), "g": (opt_g, g_loss)}, ...).',
        ),
        "training_step(dataloader_iter)": (
            is_param_in_hook_signature(module.training_step, "dataloader_iter", explicit=True),
            "a step gets its part of the batch. Take (batch, batch_idx).",
        ),
        "accumulate_grad_batches": (
            trainer.accumulate_grad_batches != 1,
            "give the DataLoader the whole batch: virtual nodes split it, however few devices there are.",
        ),
        "devices": (
            isinstance(connector._devices_flag, int) and connector._devices_flag != 1,  # a list of GPUs may be "auto"
            "how many devices there are is said outside of the script: vf run --devices 4 train.py.",
        ),
        "num_nodes": (trainer.num_nodes != 1, "use `vf run --listen` and `vf join`, or a cluster."),
        "sync_batchnorm": (
            connector._layer_sync is not None,
            "statistics are those of a virtual node, averaged after the step. Use fewer, larger virtual nodes.",
        ),
        "precision='16-mixed'": (
            getattr(trainer.precision_plugin, "scaler", None) is not None,
            "its scaler is not known to the job. Use precision='bf16-mixed', or a vf.Trainer with grad_scaler=.",
        ),
        "val_check_interval": (
            getattr(trainer, "_val_check_time_interval", None) is not None,
            "each worker has its own clock. Give a number of batches.",
        ),
    }
    for name, (is_so, reason) in refused.items():
        if is_so:
            raise ConfigError(f"VirtualFlowStrategy can't take {name}: {reason}")
    for callback in trainer.callbacks:
        for callback_class, reason in _CALLBACKS.items():
            if isinstance(callback, callback_class):
                raise ConfigError(f"VirtualFlowStrategy can't take the callback {callback_class.__name__}: {reason}")


def batch_size_of(loader: Any) -> int:
    """The global batch size that a training loader has. Raises ConfigError for what is not one DataLoader."""
    if not isinstance(loader, DataLoader):
        raise ConfigError(
            f"VirtualFlowStrategy trains on one DataLoader, and got a {type(loader).__name__}. For several loaders, "
            "put the datasets into one, whose items hold an example of each."
        )
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    if not isinstance(size, int):
        raise ConfigError(
            "the training DataLoader has no batch_size, nor has its batch sampler: give the sampler an attribute "
            "batch_size, the largest that it gives."
        )
    return size
