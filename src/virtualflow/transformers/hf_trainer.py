"""transformers.Trainer on virtual nodes.

Its own loop runs on every worker, as it is: callbacks, logs, schedules, evaluations and saves are its own. Only what a
batch is changes. The loop counts micro-batches; at the last one of an update, all of them are one step of the engine.
A worker that joins, or resumes, looks to the loop like a run that goes on from a checkpoint.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import torch
import transformers
from torch.utils.data import IterableDataset
from transformers.trainer_callback import ProgressCallback, TrainerControl
from transformers.trainer_pt_utils import find_batch_size

import virtualflow as vf
from virtualflow.core import faults
from virtualflow.core.sharding import GlobalBatch
from virtualflow.errors import ConfigError
from virtualflow.train import solo
from virtualflow.train.checkpoint import onto
from virtualflow.train.instruments import Instruments
from virtualflow.train.open_pass import OpenPass
from virtualflow.train.preparation import batch_schedule
from virtualflow.train.step_metrics import StepLoss
from virtualflow.transformers import main_process
from virtualflow.transformers.hf_refusals import refuse
from virtualflow.transformers.loop_record import LoopRecord, is_foreign
from virtualflow.transformers.micro_batches import numbers, training_data
from virtualflow.transformers.noted_metrics import as_step_metrics, note, noted
from virtualflow.transformers.shared_evaluation import OUTPUTS, EvaluatedBatches

OWN_STATE = "virtualflow.pt"  # in transformers' checkpoints
_OWN_METRICS = ("tokens", "tokens_seen")
_FLAGS = tuple(field.name for field in dataclasses.fields(TrainerControl))


class Trainer(transformers.Trainer):
    """``transformers.Trainer`` whose result depends on no number of devices; its arguments are that one's.

    A virtual node is one micro-batch of ``per_device_train_batch_size``, and there are
    ``gradient_accumulation_steps`` of them; *virtual_nodes* splits the same global batch into that number instead.
    """

    _engine: vf.Trainer | None = None
    _pass: OpenPass
    _step: StepLoss
    prediction_step: Any
    preprocess_logits_for_metrics: Any
    _has_past = False  # when it began to train
    _was_lead = True

    def __init__(self, *args: Any, virtual_nodes: int | None = None, reduction: str = "exact", **kwargs: Any) -> None:
        if len(args) < 2 and kwargs.get("args") is None:
            kwargs["args"] = transformers.TrainingArguments(output_dir="tmp_trainer")  # as transformers does
        given: Any = args[1] if len(args) > 1 else kwargs["args"]
        dataset = args[3] if len(args) > 3 else kwargs.get("train_dataset")
        self._virtual_nodes, self._reduction = virtual_nodes, reduction
        self._membership = solo.current()
        main_process.prepare(given, self._membership.job.id)
        planned = len(self._membership.job.description.node_sizes or ())
        nodes = planned or virtual_nodes or given.gradient_accumulation_steps
        refuse(given, dataset, len(self._membership.devices), nodes)
        self._take_rank()
        super().__init__(*args, **kwargs)
        self._take_rank()

    @property
    def engine(self) -> vf.Trainer:
        """The job, as ``vf.Trainer`` has it: there as soon as it trains."""
        if self._engine is None:
            raise ConfigError("this Trainer has no job before it trains: call trainer.train() first")
        return self._engine

    def digest(self) -> str:
        """sha256 over the model, its buffers and the optimizer's state."""
        return self.engine.digest()

    def _take_rank(self) -> None:
        """The lead may be another one by now."""
        lead = main_process.take_rank(self._membership)
        if getattr(self, "state", None) is not None:
            self.state.is_world_process_zero = self.state.is_local_process_zero = lead
            if lead and not self._was_lead and self.is_in_train:
                self._rebuild_bars()
        self._was_lead = lead

    def _rebuild_bars(self) -> None:
        """The last lead has taken its progress bars with it."""
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, ProgressCallback) and callback.training_bar is None:
                callback.on_train_begin(self.args, self.state, self.control)

    # How training begins

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        if self._membership.joining or self._membership.job.resume_from is not None:
            resume_from_checkpoint = None  # the job has long gone on from there, and the folder may be gone
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        batch = args.train_batch_size * args.gradient_accumulation_steps
        job = self._membership.job
        nodes = self._virtual_nodes or args.gradient_accumulation_steps
        self._sizes = batch_schedule(job, batch, nodes, job.instruments or Instruments()).at(0)
        is_cut_anew = self._virtual_nodes is not None or job.description.node_sizes is not None
        self._source = training_data(dataloader, args, self._sizes if is_cut_anew else None)
        self._numbers = numbers(len(dataloader))
        return super().set_initial_training_values(args, dataloader)

    def _init_training_state(
        self, max_steps: int, steps_per_epoch: int, epochs: int, resume_from_checkpoint: Any, trial: Any
    ) -> tuple[int, int]:
        begin: tuple[int, int]
        begin = super()._init_training_state(max_steps, steps_per_epoch, epochs, resume_from_checkpoint, trial)
        # Before where the loop begins is known, which depends on the engine, and that on the optimizer.
        self._prepared = super()._prepare_for_training(max_steps, self._numbers, resume_from_checkpoint)
        joins = self._membership.joining
        self._record = LoopRecord(self)
        self._engine = engine = self._new_engine()
        if resume_from_checkpoint is not None:
            self._resume(resume_from_checkpoint, begin)
        self._has_past = engine.enter() or joins
        if not joins:  # a script may add callbacks on the main process alone
            self._record.has_foreign_callbacks = engine.broadcast(any(map(is_foreign, self.callback_handler.callbacks)))
        self._take_rank()
        position = engine.position
        if not self._has_past:
            return begin
        if position.finished or position.step >= steps_per_epoch:
            return position.epoch + 1, 0
        return position.epoch, position.step * self.args.gradient_accumulation_steps

    def _prepare_for_training(self, *_: Any) -> Any:
        return self._prepared

    def _new_engine(self) -> vf.Trainer:
        def loss_fn(_: Any, inputs: Any) -> vf.Loss:
            return self._node_loss(inputs)

        return vf.Trainer(
            self.model,
            getattr(self.optimizer, "optimizer", self.optimizer),
            loss_fn,
            batch_size=sum(self._sizes),
            virtual_nodes=self._sizes,
            state=[self.lr_scheduler, self._record],
            reduction=self._reduction,
            seed=self.args.seed,
            on_nan="continue",  # as transformers does
            loader_workers=self.args.dataloader_num_workers or None,
        )

    def _resume(self, checkpoint: str, begin: tuple[int, int]) -> None:
        """Go on from one of transformers' checkpoints: *begin* is its epoch and micro-batch."""
        path = os.path.join(checkpoint, OWN_STATE)
        if os.path.isfile(path):
            saved = torch.load(path, weights_only=True, map_location=onto(self.args.device))
            self._record.load_state_dict(saved.pop("loop"))
        else:  # it was written without VirtualFlow
            saved = self.engine.state_dict()
            step = begin[1] // self.args.gradient_accumulation_steps
            saved["position"] |= {"epoch": begin[0], "step": step, "global_step": self.state.global_step}
        self.engine.load_state_dict(saved)

    # An epoch

    def _run_epoch(self, *, epoch: int, resume_from_checkpoint: Any, start_time: float, **kwargs: Any) -> None:
        self._record.apply()
        self._pass = self.engine.open_pass(self._source, epoch, self.state.num_train_epochs)
        if self._has_past:
            resume_from_checkpoint = resume_from_checkpoint or "a job under way"  # the loop skips what is done
        start_time = self._record.started
        super()._run_epoch(epoch=epoch, resume_from_checkpoint=resume_from_checkpoint, start_time=start_time, **kwargs)
        self._pass.finish()

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Generators are seeded by step and virtual node."""

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], None]:
        taken = [number for _, number in zip(range(num_batches), epoch_iterator, strict=False)]
        if not taken:
            return [], None
        self._record.cross_boundary()
        batch = self._pass.batch(taken[-1] // self.args.gradient_accumulation_steps)  # here workers come and go
        self._take_rank()
        return [None] * (len(taken) - 1) + [batch], None

    def training_step(self, model: Any, inputs: GlobalBatch | None, num_items_in_batch: Any = None) -> torch.Tensor:
        if inputs is None:  # not the update's last micro-batch
            return torch.zeros((), device=self.args.device)
        model.train()
        self._step = self.engine.gradients(inputs)
        note(self, "train", {name: value for name, value in self._step.metrics.items() if name not in _OWN_METRICS})
        self._take_rank()
        return torch.tensor(float(self._step), device=self.args.device)

    def _node_loss(self, inputs: Any) -> vf.Loss:
        counted = self._get_num_items_in_batch([inputs], self.args.device)
        inputs = self._prepare_inputs(inputs)
        metrics = self._tokens(inputs)
        items = None if counted is None else counted.clamp(min=1)
        with self.compute_loss_context_manager(), noted(self, "train") as notes:
            loss = self.compute_loss(self.model_wrapped, inputs, num_items_in_batch=items)
        metrics |= as_step_metrics(notes)
        # A mean over this micro-batch, whether the model divides by the given count or by its own.
        return vf.Loss(loss, None, metrics) if items is None else vf.Loss(loss * items, counted, metrics)

    def _tokens(self, inputs: Any) -> dict[str, Any]:
        main = inputs.get(getattr(self.model, "main_input_name", "input_ids"))
        if not isinstance(main, torch.Tensor):
            return {}
        padding = getattr(self.processing_class, "pad_token_id", None)
        if self.args.include_num_input_tokens_seen != "non_padding":
            return {"tokens": main.numel()}
        if "attention_mask" in inputs:
            return {"tokens": main.numel(), "tokens_seen": inputs["attention_mask"].sum()}
        return {"tokens": main.numel(), "tokens_seen": main.numel() if padding is None else (main != padding).sum()}

    def _track_num_input_tokens(self, inputs: Any) -> None:
        if inputs is not None and self.args.include_num_input_tokens_seen != "no":
            metrics = self._step.metrics
            self.state.num_input_tokens_seen += int(metrics.get("tokens_seen", metrics.get("tokens", 0)))

    def floating_point_ops(self, inputs: Any) -> int:
        if inputs is None or not hasattr(self.model, "num_parameters"):
            return 0
        return 6 * int(self._step.metrics.get("tokens", 0)) * int(self.model.num_parameters(exclude_embeddings=True))

    # What callbacks decide: one may look at a clock, so the lead's decision counts

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        self._agree_on_control()
        acts = self.control.should_log or self.control.should_evaluate or self.control.should_save
        super()._maybe_log_save_evaluate(*args, **kwargs)
        if acts:
            self._agree_on_control()

    def _agree_on_control(self) -> None:
        if self._record.has_foreign_callbacks:
            agreed = self.engine.broadcast([getattr(self.control, name) for name in _FLAGS])
            self._take_rank()
            for name, value in zip(_FLAGS, agreed, strict=True):
                setattr(self.control, name, value)

    # Evaluation, shared out by batches

    def _evaluate(self, trial: Any, ignore_keys_for_eval: Any, skip_scheduler: bool = False) -> dict[str, float]:
        if skip_scheduler and self._has_past:  # at the start, which was long ago
            return {}
        metrics: dict[str, float] = super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler)
        return metrics

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> Any:
        rest = (description, prediction_loss_only, ignore_keys, metric_key_prefix)
        if self._engine is None or isinstance(dataloader.dataset, IterableDataset):
            return super().evaluation_loop(dataloader, *rest)
        only = self.args.prediction_loss_only if prediction_loss_only is None else prediction_loss_only
        predict, preprocess = self.prediction_step, self.preprocess_logits_for_metrics
        main_input = getattr(self.model, "main_input_name", "input_ids")

        def evaluated(_: Any, inputs: Any) -> tuple[Any, Any, Any]:
            size = torch.empty(find_batch_size(inputs), 0)  # all that is asked of most inputs
            main = inputs[main_input] if "inputs" in self.args.include_for_metrics else size
            with noted(self, "eval") as notes:
                loss, logits, labels = predict(self.model_wrapped, inputs, only, ignore_keys=ignore_keys)
            if preprocess is not None and logits is not None:
                logits = preprocess(logits, labels)
            return main, (loss, logits, labels), dict(notes)

        batch_size = dataloader.batch_size or self.args.eval_batch_size
        results = self._engine.map(
            dataloader.dataset, evaluated, batch_size=batch_size, collate_fn=dataloader.collate_fn
        )
        self._take_rank()
        for *_, notes in results:
            note(self, "eval", {name: sum(some) / len(some) for name, some in notes.items() if some})
        results = [result[:2] for result in results]
        self.prediction_step = lambda model, inputs, *_, **__: inputs[OUTPUTS]
        self.preprocess_logits_for_metrics = None
        try:
            return super().evaluation_loop(EvaluatedBatches(results, dataloader, batch_size, main_input), *rest)
        finally:
            del self.prediction_step
            self.preprocess_logits_for_metrics = preprocess

    # Files: written once, and again by the next lead if the first is lost meanwhile

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self.store_flos()  # on every worker
        folder = self._get_output_dir(trial=trial)
        own = self.engine.state_dict() | {"loop": self._record.state_dict()}
        save = super()._save_checkpoint

        def write() -> None:
            self._take_rank()
            faults.reach("save")
            save(model, trial)
            torch.save(own, os.path.join(folder, f"checkpoint-{self.state.global_step}", OWN_STATE))

        self.engine.once(write)
        self._take_rank()
        best = os.path.join(folder, f"checkpoint-{self.state.best_global_step}")
        if self.state.best_global_step and os.path.isdir(best):
            self.state.best_model_checkpoint = best

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        save = super().save_model
        if self._engine is None or _internal_call:
            save(output_dir, _internal_call)
            return

        def write() -> None:
            self._take_rank()
            save(output_dir)

        self._engine.once(write)
        self._take_rank()

    # How it ends

    def _finalize_training(self, trial: Any, num_train_samples: int, start_time: float) -> Any:
        self._record.apply()
        output = super()._finalize_training(trial, num_train_samples, self._record.started)
        self.engine.leave()
        return output

    def _load_best_model(self) -> None:
        super()._load_best_model()
        if self.engine.broadcast(self.digest()) != self.digest():
            raise ConfigError(
                f"the best model is not the same on every worker: {self.state.best_model_checkpoint} must lie on a "
                "file system that all machines of the job share."
            )

    def hyperparameter_search(self, *_: Any, **__: Any) -> Any:
        raise ConfigError(
            "hyperparameter_search trains many models in one script, of which workers could join only the first. Make "
            "each trial a job of its own: vf submit train.py --learning-rate ..."
        )


class Seq2SeqTrainer(Trainer, transformers.Seq2SeqTrainer):
    """``transformers.Seq2SeqTrainer``, in the same way."""
