"""Progress bars through a change of the lead: the last one has taken its own with it."""

from __future__ import annotations

from lightning.pytorch import Trainer

from virtualflow.train import solo


def take_over(trainer: Trainer, *, trains: bool) -> None:
    """This worker leads now. Lightning has turned its bar off; if it *trains* already, begin one where the job is."""
    bar = trainer.progress_bar_callback
    if bar is None or solo.installed() is None:
        return
    bar.enable()
    if trains:
        bar.on_train_start(trainer, trainer.lightning_module)
        bar.on_train_epoch_start(trainer, trainer.lightning_module)
