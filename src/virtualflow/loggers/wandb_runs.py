"""Weights & Biases."""

from __future__ import annotations

from typing import Any

from virtualflow.errors import ConfigError


class WandB:
    """Logs to the run that has the job's id; *options* are those of ``wandb.init``."""

    def __init__(self, **options: Any) -> None:
        try:
            import wandb  # type: ignore[import-not-found]
        except ImportError as error:
            raise ConfigError("this needs wandb: pip install wandb") from error
        self._wandb = wandb
        self._options = options
        self._run: Any = None

    def open(self, run: str, facts: dict[str, Any]) -> None:
        self._run = self._wandb.init(**{"id": run, "resume": "allow", "name": run, "config": facts} | self._options)
        # By a metric of its own: wandb drops what is logged for a step before its last one.
        self._run.define_metric("global_step")
        self._run.define_metric("*", step_metric="global_step")

    def log(self, step: int, values: dict[str, float], time: float) -> None:
        self._run.log({**values, "global_step": step, "time": time})

    def close(self) -> None:
        self._run.finish()
