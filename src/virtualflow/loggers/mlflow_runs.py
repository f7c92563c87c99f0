"""MLflow."""

from __future__ import annotations

import re
from typing import Any

from virtualflow.errors import ConfigError

TAG = "virtualflow.job"
LONGEST_PARAM = 6000  # characters that MLflow takes
MOST_PARAMS = 100  # that it takes at once


class MLflow:
    """Logs to the run that is tagged with the job's id, in *experiment*."""

    def __init__(self, experiment: str = "virtualflow", tracking_uri: str | None = None) -> None:
        try:
            import mlflow  # type: ignore[import-not-found]
        except ImportError as error:
            raise ConfigError("this needs mlflow: pip install mlflow, or mlflow-skinny for a server") from error
        self._mlflow: Any = mlflow
        self._tracking_uri = tracking_uri
        self._experiment = experiment
        self._client: Any = None
        self._run = ""

    def open(self, run: str, facts: dict[str, Any]) -> None:
        # Not before: it makes a database's tables, and workers that did so at once would be in each other's way.
        client = self._client = self._mlflow.MlflowClient(self._tracking_uri)
        known = client.get_experiment_by_name(self._experiment)
        experiment = known.experiment_id if known is not None else client.create_experiment(self._experiment)
        runs = client.search_runs([experiment], filter_string=f"tags.`{TAG}` = '{run}'", max_results=1)
        entry = runs[0] if runs else client.create_run(experiment, tags={TAG: run}, run_name=run)
        self._run = entry.info.run_id
        if runs:
            client.update_run(self._run, status="RUNNING")  # the lead before may have closed it
        else:
            plain = {name: value for name, value in facts.items() if isinstance(value, str | int | float | bool)}
            params = [self._mlflow.entities.Param(_named(name), str(plain[name])[:LONGEST_PARAM]) for name in plain]
            client.log_batch(self._run, params=params[:MOST_PARAMS])

    def log(self, step: int, values: dict[str, float], time: float) -> None:
        metric, at = self._mlflow.entities.Metric, round(1000 * time)
        metrics = [metric(_named(name), value, at, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run)


def _named(name: str) -> str:
    """*name* with the characters that MLflow takes."""
    return re.sub(r"[^\w\-. /:]", "_", name)
