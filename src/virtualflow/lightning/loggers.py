"""Loggers through a change of the lead: one run for a job, whoever writes it."""

from __future__ import annotations

import csv
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter

from virtualflow.train import solo


def name_after_job(trainer: Trainer) -> None:
    """Give loggers that number their runs the job's id instead: the next lead would count one further."""
    membership = solo.installed()
    for logger in trainer.loggers if membership is not None else ():
        assert membership is not None
        if getattr(logger, "_version", "") is None:
            logger._version = membership.job.id
        if isinstance(settings := getattr(logger, "_wandb_init", None), dict) and settings.get("id") is None:
            settings["id"] = logger._id = membership.job.id
            settings["resume"] = "allow"


def take_over(trainer: Trainer) -> None:
    """This worker leads: go on with what the one before it has written."""
    for logger in trainer.loggers if solo.installed() is not None else ():
        if isinstance(logger, CSVLogger) and logger._experiment is None:
            logger._experiment = _Appending(logger.log_dir)


class _Appending(ExperimentWriter):
    """Lightning's own would begin with deleting the file."""

    def _check_log_dir_exists(self) -> Any:
        if self._fs.isfile(self.metrics_file_path):
            with self._fs.open(self.metrics_file_path, "r", newline="") as file:
                self.metrics_keys = next(csv.reader(file), [])
