"""Lightning's side of a job's state: what a worker that joins in the middle of an epoch must know of its loops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.connectors.logger_connector.result import _Metadata, _ResultMetric, _Sync
from torch import Tensor

from virtualflow.train.kept_attributes import KeptAttributes
from virtualflow.train.plain import decoded, encoded

_META = ("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx")


class Kept:
    """Goes into the job's ``state=``. To Lightning, a worker that joins looks like a fit that restarts in an epoch."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._arrived: dict[str, Any] | None = None
        self.options: dict[str, dict[str, Any]] = {}  # how what training_step logs is logged, by name
        self._data = {name: self._attributes().data_of(owner) for name, owner in self._modules()}

    def state_dict(self) -> dict[str, Any]:
        trainer, connector = self._trainer, self._trainer._logger_connector
        contents = {
            "loops": trainer.fit_loop.state_dict(),
            "callbacks": call._call_callbacks_state_dict(trainer),
            "schedulers": [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs],
            "should_stop": trainer.should_stop,
            "metrics": connector._callback_metrics,
            "options": self.options,
            "results": [_result(metric) for metric in trainer.fit_loop.epoch_loop._results.values() if _counts(metric)],
            "first_loop_iter": connector._first_loop_iter,
            "current_fx": connector._current_fx,
        }
        plain: dict[str, Any] = encoded(contents, "what Lightning keeps")
        attributes = self._attributes()
        taken = {name: attributes.without_data(owner, self._data.get(name, {})) for name, owner in self._modules()}
        taken |= {name: attributes.take(owner, private=private) for name, owner, private in self._callbacks()}
        return plain | {"attributes": taken}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        rest = {key: value for key, value in saved.items() if key != "attributes"}
        self._arrived = contents = decoded(rest) | {"attributes": saved["attributes"]}
        trainer = self._trainer
        trainer.fit_loop.load_state_dict(contents["loops"])
        _go_on(trainer.fit_loop)
        call._call_callbacks_load_state_dict(trainer, {"callbacks": contents["callbacks"]})
        for config, state in zip(trainer.lr_scheduler_configs, contents["schedulers"], strict=True):
            config.scheduler.load_state_dict(state)
        trainer.should_stop = contents["should_stop"]
        self.options = contents["options"]

    def on_train_start(self) -> None:
        """Put in what Lightning, and hooks at the start, set anew: the job is long past its start."""
        if self._arrived is None:
            return
        contents, self._arrived = self._arrived, None
        connector = self._trainer._logger_connector
        connector._callback_metrics = contents["metrics"]
        connector._first_loop_iter, connector._current_fx = contents["first_loop_iter"], contents["current_fx"]
        results = self._trainer.fit_loop.epoch_loop._results
        for saved in contents["results"]:
            results[f"{saved['meta']['fx']}.{saved['meta']['name']}"] = _metric(saved, self._trainer.strategy.reduce)
        attributes = self._attributes()
        for name, owner in (*self._modules(), *(kept[:2] for kept in self._callbacks())):
            if name in contents["attributes"]:
                attributes.put(owner, contents["attributes"][name], type(owner).__name__)

    def _attributes(self) -> KeptAttributes:
        trainer = self._trainer
        others = (*trainer.optimizers, *(config.scheduler for config in trainer.lr_scheduler_configs))
        return KeptAttributes(trainer.lightning_module, (trainer, *others, *trainer.callbacks))

    def _modules(self) -> Iterator[tuple[str, Any]]:
        """The user's model and data, whose hooks may keep something in them."""
        yield "module", self._trainer.lightning_module
        if self._trainer.datamodule is not None:
            yield "datamodule", self._trainer.datamodule

    def _callbacks(self) -> Iterator[tuple[str, Any, bool]]:
        """The user's own callbacks, and whether their private attributes are the user's, too."""
        for number, callback in enumerate(self._trainer.callbacks):
            if not _is_lightnings(type(callback)):
                bases = [base for base in type(callback).__mro__ if _is_lightnings(base) and base is not Callback]
                yield f"callback {number}", callback, not bases


def _is_lightnings(checked_class: type) -> bool:
    return checked_class.__module__.startswith("lightning.")


def _go_on(fit_loop: Any) -> None:
    """Have a fit that has restarted in an epoch go on as if it never had.

    It would skip a round where a validation may have been due, and a schedule's step at the end of the epoch.
    """
    loop = fit_loop.epoch_loop

    def on_run_start(fetcher: Any) -> None:
        del loop.on_run_start
        loop.on_run_start(fetcher)
        fit_loop._restarting = loop._restarting = loop.val_loop._restarting = False
        loop.reset_restart_stage()

    loop.on_run_start = on_run_start


def _counts(metric: _ResultMetric) -> bool:
    return metric.is_tensor and not metric.has_reset


def _result(metric: _ResultMetric) -> dict[str, Any]:
    """A running mean or sum of this epoch, which Lightning keeps in no checkpoint."""
    return {
        "meta": {key: getattr(metric.meta, key) for key in _META} | {"reduce_fx": metric.meta.reduce_fx.__name__},
        "rank_zero_only": metric.meta.sync.rank_zero_only,
        "value": metric.value,
        "weight": getattr(metric, "cumulated_batch_size", None),
        "step": metric._forward_cache,
    }


def _metric(saved: dict[str, Any], reduce: Any) -> _ResultMetric:
    meta = _Metadata(**saved["meta"])
    meta.sync = _Sync(_should=False, fn=reduce, rank_zero_only=saved["rank_zero_only"])
    metric = _ResultMetric(meta, is_tensor=True)
    metric.value = torch.as_tensor(saved["value"])
    if isinstance(saved["weight"], Tensor):
        metric.cumulated_batch_size = saved["weight"]
    metric._forward_cache = saved["step"]
    metric._update_count = 1
    return metric
