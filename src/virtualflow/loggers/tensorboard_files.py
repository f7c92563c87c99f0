"""TensorBoard."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from virtualflow.errors import ConfigError


class TensorBoard:
    """Writes event files below *folder*, in one that is named after the job."""

    def __init__(self, folder: str | Path = "runs") -> None:
        try:
            import tensorboardX  # type: ignore[import-untyped]
        except ImportError as error:
            raise ConfigError("this needs tensorboardX: pip install 'virtualflow[tensorboard]'") from error
        self._make = tensorboardX.SummaryWriter
        self._folder = Path(folder)
        self._writer: Any = None

    def open(self, run: str, facts: dict[str, Any]) -> None:
        # Leads that follow each other within a second must not write to the same file.
        self._writer = self._make(str(self._folder / run), filename_suffix=f".{os.getpid()}")

    def log(self, step: int, values: dict[str, float], time: float) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step, walltime=time)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
