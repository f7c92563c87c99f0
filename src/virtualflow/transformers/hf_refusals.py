"""Settings of a transformers Trainer under which the promise can't hold: refused before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import transformers
from torch.utils.data import IterableDataset

from virtualflow.core.wording import counted
from virtualflow.errors import ConfigError

# What transformers' loop is made of, as far as it is replaced: no public names, so another version may lack one.
_PARTS_OF_THE_LOOP = (
    "set_initial_training_values",
    "_init_training_state",
    "_prepare_for_training",
    "_run_epoch",
    "get_batch_samples",
    "_get_num_items_in_batch",
    "_track_num_input_tokens",
    "_maybe_log_save_evaluate",
    "_save_checkpoint",
    "_load_best_model",
    "_finalize_training",
)
_UNSUITABLE_OPTIMIZERS = ("lomo", "layerwise", "schedule_free")


def refuse(args: Any, train_dataset: Any, devices: int, virtual_nodes: int) -> None:
    """Raise ConfigError if the Trainer that has these *args* can't run on virtual nodes."""
    for reason in _reasons(args, train_dataset, devices, virtual_nodes):
        raise ConfigError(f"virtualflow.transformers.Trainer can't run with {reason}")


def _reasons(args: Any, train_dataset: Any, devices: int, virtual_nodes: int) -> Iterator[str]:
    for part in _PARTS_OF_THE_LOOP:
        if not hasattr(transformers.Trainer, part):
            yield (
                f"transformers {transformers.__version__}, whose loop has no {part}: it is made for that of 5.22. "
                "Install one that fits: pip install 'virtualflow[transformers]'"
            )
    if args.deepspeed or args.fsdp:
        which = "deepspeed" if args.deepspeed else "fsdp"
        yield f"{which}=: it cuts the model's state by rank, while every device holds all of it here. Leave it out."
    if args.parallelism_config is not None:
        yield "parallelism_config=: every device runs the whole model here. Leave it out."
    if args.world_size > 1:
        yield "torchrun or accelerate launch. Start the script with `vf run --devices N train.py`, or with python."
    if args.n_gpu > 1:
        yield f"{args.n_gpu} GPUs in one process. Start the script with `vf run --devices {args.n_gpu} train.py`."
    if args.auto_find_batch_size:
        yield "auto_find_batch_size=True: the batch, and so the model, would depend on a device's memory. Set it."
    if args.fp16:
        yield "fp16=True: its gradient scaler is not part of the job. Use bf16=True."
    if any(name in str(args.optim).lower() for name in _UNSUITABLE_OPTIMIZERS):
        yield (
            f"optim={str(getattr(args.optim, 'value', args.optim))!r}: it changes parameters outside of its step, "
            "before all virtual nodes are summed. Use one that updates in step(), such as adamw_torch."
        )
    if args.torch_compile:
        yield (
            "torch_compile=True, which compiles with dynamic shapes: bits would depend on the shapes seen before. "
            "Compile the model yourself: torch.compile(model, dynamic=False)."
        )
    if args.train_sampling_strategy == "batch_rebalance":
        yield "train_sampling_strategy='batch_rebalance', which depends on ranks. Use 'group_by_length'."
    if args.ignore_data_skip:
        yield "ignore_data_skip=True: where the job stands in its data is part of it. Leave it out."
    if args.enable_jit_checkpoint:
        yield "enable_jit_checkpoint=True: `vf stop` and preemption notices write a checkpoint already. Leave it out."
    if isinstance(train_dataset, IterableDataset) or not hasattr(train_dataset or [], "__getitem__"):
        yield (
            f"a train_dataset that is read from front to back ({type(train_dataset).__name__}): transformers' loop "
            "needs examples that have an index, so that any device can load any of them. Load it into a map-style "
            "dataset (streaming=False), or train with a vf.Trainer on vf.hf_stream(...)."
        )
    if devices > virtual_nodes:
        yield (
            f"{counted(virtual_nodes, 'virtual node')} on {devices} devices. A virtual node is a micro-batch: raise "
            "gradient_accumulation_steps and lower per_device_train_batch_size by the same factor; or say "
            "virtual_nodes=, which splits the same batch into that number."
        )
