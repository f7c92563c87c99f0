"""The strategy for ``L.Trainer``: Lightning keeps its loops, callbacks, loggers and checkpoints, on every worker.

The training DataLoader's batch is the global one. ``training_step`` runs for each virtual node's part of it, and what
``self.log`` gets there is put together in the step's agreement and logged once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.fabric.utilities.seed import pl_worker_init_function
from lightning.pytorch import Trainer
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer import call
from torch import Tensor
from torch.utils.data import DataLoader

import virtualflow as vf
from virtualflow.core import faults
from virtualflow.core.sharding import GlobalBatch
from virtualflow.errors import ConfigError
from virtualflow.lightning import loggers, progress_bars, refusals
from virtualflow.lightning.loaders import GlobalLoader, SharedLoader, Ticket, TrainingTicket, ValidationTicket
from virtualflow.lightning.logged_values import as_metrics, collected, weight_of
from virtualflow.lightning.loop_state import Kept
from virtualflow.train import solo
from virtualflow.train.early_results import Recorded
from virtualflow.train.open_pass import OpenPass
from virtualflow.train.peers import Peers

_IN_TRAINING = "Log it with self.log, or change it in a hook such as on_train_batch_end."
_IN_VALIDATION = (
    "Log it with self.log, or use VirtualFlowStrategy(share_validation=False): every worker then computes all of it."
)


class VirtualFlowStrategy(SingleDeviceStrategy):
    """``L.Trainer(strategy=VirtualFlowStrategy(virtual_nodes=8))``, for automatic optimization.

    *virtual_nodes*, *seed* and *reduction* are those of a ``vf.Trainer``. With ``share_validation=False`` every worker
    computes the whole validation, which then may keep what it likes in the module.
    """

    strategy_name = "virtualflow"

    def __init__(
        self,
        virtual_nodes: int | list[int],
        *,
        seed: int | None = None,
        reduction: str = "exact",
        share_validation: bool = True,
        **options: Any,
    ) -> None:
        device = solo.device_type()
        if device == "cpu":
            options.setdefault("accelerator", CPUAccelerator())
        super().__init__(**{"device": device} | options)
        self._virtual_nodes = virtual_nodes
        self._seed = seed
        self._reduction = reduction
        self._shares = share_validation
        self._kept: Kept | None = None
        self._passing: OpenPass | None = None
        self._saved: dict[str, Any] | None = None  # the engine's part of a checkpoint that this fit resumes from
        self._gradients: list[Tensor | None] = []
        self._arguments: tuple[Any, ...] = ()  # of training_step, besides the batch
        self._options: dict[str, Any] = {}  # with which this step's values are logged, by their names
        self._inside = False  # of a fit: the job's calls can be made
        self._trains = False  # it has begun to
        self._led = solo.leads()
        self.engine: vf.Trainer | None = None
        self._update_lead()

    # Who is rank zero

    @property
    def is_global_zero(self) -> bool:
        return self.global_rank == 0

    @property
    def global_rank(self) -> int:
        rank_zero_only.rank = 0 if solo.leads() else 1
        return int(rank_zero_only.rank)

    @global_rank.setter
    def global_rank(self, _: int) -> None:
        """Lightning counts processes; who leads is the job's business."""

    local_rank = global_rank

    def _update_lead(self) -> None:
        """After whatever a lead may have been lost in: Lightning asks a global variable."""
        leads, led = self.is_global_zero, self._led
        if leads and self.lightning_module is not None:
            loggers.take_over(self.lightning_module.trainer)
            if not led:
                progress_bars.take_over(self.lightning_module.trainer, trains=self._trains)
            self._led = True

    @contextmanager
    def _call(self) -> Iterator[vf.Trainer]:
        """Around a call that all workers make: its lead may have been lost since, and after an error there is no more.

        Lightning's callbacks may save when a worker leaves, or fails, which the others know nothing of.
        """
        assert self.engine is not None
        try:
            yield self.engine
        except BaseException:
            self._inside = False
            raise
        finally:
            self._update_lead()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        if not self._inside:
            return obj  # the same on all, as they run the same script
        with self._call() as engine:
            return engine.broadcast(obj)

    def barrier(self, name: str | None = None) -> None:
        """Wait for the lead after ``prepare_data``, which is the lead's alone; what else needs it, is agreed."""
        if name == "pre_setup" and self.engine is None and self.lightning_module.trainer.state.fn == "fit":
            membership = solo.current()
            peers = Peers.of(membership)
            Recorded(membership)(lambda: peers.from_lead("once", 0, lambda: 0))

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        if not self._inside:
            return decision
        with self._call() as engine:
            decisions = engine.gather(decision)
        return False not in decisions if all else True in decisions

    # Before and after the loop

    def connect(self, model: Any) -> None:
        super().connect(model)
        loggers.name_after_job(model.trainer)
        self._update_lead()

    def setup(self, trainer: Trainer) -> None:
        module, fits = self.lightning_module, trainer.state.fn == "fit"
        if fits:
            refusals.check(trainer, module)
        if isinstance(self.precision_plugin, MixedPrecision):
            self.precision_plugin.device = self.root_device.type  # Lightning takes CUDA for granted here
        super().setup(trainer)
        if not fits:
            return
        loader = trainer.fit_loop._data_source.dataloader()
        size = refusals.batch_size_of(loader)
        if not trainer.reload_dataloaders_every_n_epochs:
            trainer.fit_loop._data_source.instance = loader  # so that it is not made twice
        self._kept = Kept(trainer)
        self.engine = engine = vf.Trainer(
            module,
            self.optimizers[0],
            self._loss_fn(),
            batch_size=size,
            virtual_nodes=self._virtual_nodes,
            state=[self._kept],
            reduction=self._reduction,
            seed=self._seed,
            backward=lambda loss: module.backward(loss),
        )
        membership = solo.installed()
        joins = membership is not None and membership.joining
        if membership is not None:  # Lightning would end the script on SIGTERM: here it means that a worker leaves
            trainer._signal_connector.register_signal_handlers = lambda: None
        if engine.enter() or joins:  # the job is past what a checkpoint of the user's, and a first look, are for
            trainer.num_sanity_val_steps = 0
            trainer._checkpoint_connector._loaded_checkpoint = {}
            self._saved = None
        self._inside = True
        _pass_tickets(module)
        self._update_lead()

    def on_train_start(self) -> None:
        assert self.engine is not None
        assert self._kept is not None
        if self._saved is not None:
            self.engine.load_state_dict(self._saved)
        self._saved = None
        self._trains = True
        self._kept.on_train_start()

    def on_train_end(self) -> None:
        self._trains = False
        self._finish_pass()
        self._leave()

    def teardown(self) -> None:
        self._leave()
        super().teardown()

    def _leave(self) -> None:
        if self._inside and self.engine is not None:
            self._inside = False
            self.engine.leave()

    # The batches

    def process_dataloader(self, dataloader: Any) -> Any:
        trainer = self.lightning_module.trainer
        if not self._inside or not isinstance(dataloader, DataLoader):
            return dataloader
        if getattr(dataloader.worker_init_fn, "func", None) is pl_worker_init_function:
            dataloader.worker_init_fn = None  # seed_everything(workers=True): every example has a seed of its own
        if trainer.training:
            return GlobalLoader(dataloader, self._open_pass, self._crossed)
        return SharedLoader(dataloader) if self._shares else dataloader

    def _open_pass(self, loader: DataLoader[Any], epoch: int) -> OpenPass:
        assert self.engine is not None
        self._finish_pass()
        epochs = self.lightning_module.trainer.max_epochs
        self._passing = self.engine.open_pass(loader, epoch, max(epochs or 0, epoch + 1))
        return self._passing

    def _crossed(self, passing: OpenPass, step: int) -> GlobalBatch:
        with self._call():
            return passing.batch(step)

    def _finish_pass(self) -> None:
        if self._passing is not None:
            self._passing.finish()
        self._passing = None

    def batch_to_device(self, batch: Any, device: Any = None, dataloader_idx: int = 0) -> Any:
        if isinstance(batch, list | tuple) and any(isinstance(item, Ticket) for item in batch):
            raise ConfigError(
                "several validation DataLoaders at once (CombinedLoader) can't be shared out. Use a list of loaders, "
                "or VirtualFlowStrategy(share_validation=False)."
            )
        return batch if isinstance(batch, Ticket) else super().batch_to_device(batch, device, dataloader_idx)

    def _loaded(self, shard: Any, dataloader_idx: int = 0) -> Any:
        """A part of a batch, after all that Lightning does to a batch."""
        shard = self.precision_plugin.convert_input(shard)
        shard = self.lightning_module._on_before_batch_transfer(shard, dataloader_idx=dataloader_idx)
        return super().batch_to_device(shard, self.root_device, dataloader_idx)

    # A step

    def _loss_fn(self) -> Any:
        module, loaded, run = self.lightning_module, self._loaded, super().training_step

        def loss_fn(_: Any, shard: Any) -> Any:
            batch = loaded(shard)
            with collected(module, batch, _IN_TRAINING) as entries:
                output = run(batch, *self._arguments)
            self._options |= {entry.name: entry.options for entry in entries}
            return _loss_of(output), as_metrics(entries)

        return loss_fn

    def training_step(self, batch: Any, *arguments: Any) -> Tensor:
        assert isinstance(batch, TrainingTicket)
        assert self._kept is not None
        module = self.lightning_module
        self._arguments, self._options = arguments, {}
        with self._call() as engine:
            loss = engine.gradients(batch.batch)
        values = dict(loss.metrics)
        weights = {name: values.pop(weight_of(name)) for name in list(values) if weight_of(name) in values}
        known = self._kept.options
        if not values.keys() <= known.keys():  # a worker without examples has not seen how they are logged
            with self._call() as engine:
                everyone = engine.gather(self._options)
            for theirs in everyone:
                known |= {name: options for name, options in theirs.items() if name not in known}
        for name in sorted(values):
            size = int(weights.get(name, batch.batch.examples))
            module.log(name, values[name], batch_size=size, **known.get(name, {}))
        # Lightning sets gradients to None before it calls backward.
        self._gradients = [parameter.grad for parameter in module.parameters()]
        return torch.tensor(float(loss))

    def backward(self, closure_loss: Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> Tensor:
        module = self.lightning_module
        for hooks in (call._call_callback_hooks, call._call_lightning_module_hook):
            hooks(module.trainer, "on_before_backward", closure_loss)
        for parameter, gradient in zip(module.parameters(), self._gradients, strict=True):
            parameter.grad = gradient
        self._gradients = []
        for hooks in (call._call_callback_hooks, call._call_lightning_module_hook):
            hooks(module.trainer, "on_after_backward")
        return closure_loss

    # Validation

    def validation_step(self, batch: Any, *arguments: Any) -> Any:
        if not isinstance(batch, ValidationTicket):
            return super().validation_step(batch, *arguments)
        if not batch.shared.results:
            batch.shared.results = self._validated(batch.shared, arguments)
        entries, output = batch.shared.results[batch.number]
        for name, value, weight, options in entries:
            self.lightning_module.log(name, value, batch_size=weight, **options)
        return output

    def _validated(self, shared: SharedLoader, arguments: tuple[Any, ...]) -> list[Any]:
        """What ``validation_step`` logs and returns for each batch that is due, shared out over the workers."""
        module, run = self.lightning_module, super().validation_step
        index = arguments[1] if len(arguments) > 1 else 0
        limit = module.trainer.fit_loop.epoch_loop.val_loop.max_batches[index]
        data, collate_fn, size = shared.numbered(int(min(limit, len(shared))))
        wants_output = _wants_output(module.trainer)

        def function(_: Any, numbered: Any) -> Any:
            number, shard = numbered
            batch = self._loaded(shard, index)
            with collected(module, batch, _IN_VALIDATION) as entries:
                output = run(batch, *(number, *arguments[1:])[: len(arguments)])
            logged = [(entry.name, entry.value, entry.weight, entry.options) for entry in entries]
            return logged, output if wants_output else None

        with self._call() as engine:
            return engine.map(data, function, batch_size=size, collate_fn=collate_fn)

    # Files

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        if not self._inside:
            super().save_checkpoint(checkpoint, filepath, storage_options)
            return

        def save() -> None:
            faults.reach("save")
            self.checkpoint_io.save_checkpoint(checkpoint, filepath, storage_options=storage_options)

        with self._call() as engine:
            if "loops" in checkpoint:
                checkpoint["virtualflow"] = engine.state_dict()
            engine.once(save)

    def remove_checkpoint(self, filepath: Any) -> None:
        if not self._inside:
            super().remove_checkpoint(filepath)
            return
        with self._call() as engine:
            engine.once(lambda: self.checkpoint_io.remove_checkpoint(filepath))

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        checkpoint: dict[str, Any] = super().load_checkpoint(*args, **kwargs)
        self._saved = checkpoint.get("virtualflow")
        return checkpoint


def _loss_of(output: Any) -> Any:
    if isinstance(output, dict):
        output = output.get("loss")
    if output is None:
        raise ConfigError(
            "training_step returned no loss. A step can't be left out by some virtual nodes alone: return the loss, or "
            "a dict with 'loss', for every batch."
        )
    return output


def _wants_output(trainer: Trainer) -> bool:
    """Whether anybody but Lightning itself looks at what ``validation_step`` returns."""
    owners = (*trainer.callbacks, trainer.lightning_module)
    hooks = (type(owner).on_validation_batch_end for owner in owners)
    return any(not hook.__module__.startswith("lightning.") for hook in hooks)


def _pass_tickets(module: Any) -> None:
    """Keep tickets from a hook of the user's that is for batches."""
    before = type(module)._on_before_batch_transfer

    def on_before_batch_transfer(batch: Any, dataloader_idx: int = 0) -> Any:
        return batch if isinstance(batch, Ticket) else before(module, batch, dataloader_idx)

    module._on_before_batch_transfer = on_before_batch_transfer
