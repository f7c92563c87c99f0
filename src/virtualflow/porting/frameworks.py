"""Scripts whose loop belongs to a framework: transformers, Lightning, Fabric, DeepSpeed."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from virtualflow.porting.advice import Advice, Severity
from virtualflow.porting.call_rules import CallRule, advise_calls
from virtualflow.porting.script import Script, argument, is_constant, is_named
from virtualflow.porting.training_loop import backward_calls

HUGGING_FACE = ("transformers.Trainer", "transformers.Seq2SeqTrainer", "transformers.trainer.Trainer")
LIGHTNING = ("lightning.Trainer", "pytorch_lightning.Trainer", "lightning.pytorch.Trainer")
FABRIC = ("lightning.Fabric", "lightning_fabric.Fabric", "lightning.fabric.Fabric")
_LIGHTNING_ARGUMENTS = {
    "accumulate_grad_batches": "give the DataLoader the whole batch of an update. Virtual nodes split it.",
    "precision": "if it is '16-mixed', with a scaler that the job does not know. Use 'bf16-mixed'.",
    "sync_batchnorm": "batch norm sees one virtual node. Use fewer, larger virtual nodes.",
}
_TAKEN = {  # values that are not
    "accumulate_grad_batches": ("1",),
    "precision": ("None", "32", "'32'", "'32-true'", "'bf16-mixed'", "'bf16-true'", "'64-true'"),
    "sync_batchnorm": ("False",),
}
_WHOLE = "each device holds the whole model, and the batch is part of the job."
_ARGUMENTS = {  # of transformers' TrainingArguments
    "deepspeed": _WHOLE,
    "fsdp": _WHOLE,
    "fsdp_config": _WHOLE,
    "parallelism_config": _WHOLE,
    "auto_find_batch_size": _WHOLE,
    "fp16": "its gradient scaler is not part of the job. Use bf16=True.",
    "torch_compile": "it compiles with dynamic shapes. Do it yourself: `torch.compile(model, dynamic=False)`.",
    "ignore_data_skip": "where the job stands in its data is part of it. Leave it out.",
    "enable_jit_checkpoint": "`vf stop` and preemption notices write a checkpoint already. Leave it out.",
}
_OPTIMIZERS = ("lomo", "layerwise", "schedule_free")
OTHERS = (
    CallRule(
        FABRIC,
        "keep it for precision, loggers and files: `Fabric(..., strategy=VirtualFlowFabricStrategy())` (from "
        "virtualflow.lightning), without devices= and any other strategy, and `trainer = vf.Trainer("
        "*fabric.setup(model, optimizer), loss_fn, batch_size=..., virtual_nodes=..., backward=fabric.backward)`. `vf "
        "run --devices N` says how many.",
    ),
    CallRule(("fabric.launch",), "delete it: `vf run --devices N` starts the workers."),
    CallRule(("setup_dataloaders",), "leave it out: the DataLoader itself goes into `trainer.batches`."),
    CallRule(
        ("no_backward_sync",),
        "delete it: one `trainer.step(batch)` is one update. Give the DataLoader the whole batch of an update.",
    ),
    CallRule(
        ("deepspeed.initialize", "deepspeed.init_distributed", "DeepSpeedPlugin", "FullyShardedDataParallelPlugin"),
        "no counterpart: each device holds the whole model and the optimizer's state.",
        Severity.CANNOT,
    ),
    CallRule(
        ("trl.SFTTrainer",),
        "`class SFT(Trainer, SFTTrainer): pass`, with Trainer from virtualflow.transformers, and `SFT(...)` with the "
        "same arguments. Start it with `vf run --devices N`.",
    ),
    CallRule(
        ("trl.DPOTrainer", "trl.PPOTrainer", "trl.GRPOTrainer"),
        "no counterpart that has been tried: of TRL's, `class SFT(Trainer, SFTTrainer)` is.",
        Severity.CANNOT,
    ),
)


def owns_loop(script: Script) -> bool:
    """Whether the training loop is a framework's, so that advice about loops does not apply."""
    users = any(script.called(*HUGGING_FACE, *LIGHTNING)) or any(_modules(script)) or any(_own_trainers(script))
    return users and not any(backward_calls(script))


def hugging_face(script: Script) -> Iterator[Advice]:
    for node in script.nodes(ast.ImportFrom):
        names = [alias.name for alias in node.names if f"{node.module}.{alias.name}" in HUGGING_FACE]
        if names:
            yield script.advice(
                node,
                f"`from virtualflow.transformers import {', '.join(names)}`, and the rest as it is. Start it with `vf "
                "run --devices N`, not with torchrun or accelerate launch.",
            )
    for call in script.called("transformers.Trainer", "transformers.Seq2SeqTrainer"):
        if script.text(call.func).startswith("transformers."):
            yield script.advice(call, "`virtualflow.transformers.Trainer(...)` with the same arguments.")
    for call in script.called("TrainingArguments", "Seq2SeqTrainingArguments"):
        yield from _arguments(script, call)


def _arguments(script: Script, call: ast.Call) -> Iterator[Advice]:
    for name, why in _ARGUMENTS.items():
        value = argument(call, name)
        if value is not None and not is_constant(value, None, False, ""):
            yield script.advice(value, f"{name}= is refused: {why}", Severity.CANNOT)
    optimizer = argument(call, "optim")
    if isinstance(optimizer, ast.Constant) and any(name in str(optimizer.value).lower() for name in _OPTIMIZERS):
        yield script.advice(
            optimizer, "optim= is refused: it changes parameters outside of its step. Use adamw_torch.", Severity.CANNOT
        )


def several_devices(script: Script) -> Iterator[Advice]:
    for call in script.called("from_pretrained"):
        value = argument(call, "device_map")
        if value is not None and not is_constant(value, None):
            yield script.advice(value, "leave device_map= out: a worker has one device, and the whole model is on it.")


def _own_trainers(script: Script) -> Iterator[ast.ClassDef]:
    for node in script.nodes(ast.ClassDef):
        if any(script.name_of(base) in HUGGING_FACE for base in node.bases):
            yield node


def _modules(script: Script) -> Iterator[ast.ClassDef]:
    for node in script.nodes(ast.ClassDef):
        if any(is_named(script.name_of(base), "LightningModule") for base in node.bases):
            yield node


def lightning(script: Script) -> Iterator[Advice]:
    for call in script.called(*LIGHTNING):
        trainer = script.text(call.func)
        yield script.advice(
            call,
            f"`{trainer}(..., strategy=VirtualFlowStrategy(virtual_nodes=8))` (from virtualflow.lightning), without "
            "devices=, num_nodes= and any other strategy: `vf run --devices N` says how many. The training "
            "DataLoader's batch is that of all devices together.",
        )
        accelerator = argument(call, "accelerator")
        if accelerator is not None and is_constant(accelerator, "cpu"):
            yield script.advice(accelerator, "leave accelerator='cpu' out: the strategy brings the worker's own.")
        for name, instead in _LIGHTNING_ARGUMENTS.items():
            value = argument(call, name)
            if value is not None and not (isinstance(value, ast.Constant) and repr(value.value) in _TAKEN[name]):
                yield script.advice(value, f"{name}= is refused: {instead}", Severity.CANNOT)
    imports: list[ast.Import | ast.ImportFrom] = [*script.nodes(ast.Import), *script.nodes(ast.ImportFrom)]
    for node in imports:
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        if any(module.partition(".")[0] == "pytorch_lightning" for module in modules):
            yield script.advice(
                node, "import it from `lightning`: the older package has classes of its own, and takes no strategy."
            )
    for assignment in script.nodes(ast.Assign):
        manual = any(is_named(script.name_of(target), "automatic_optimization") for target in assignment.targets)
        if manual and is_constant(assignment.value, False):
            yield script.advice(
                assignment,
                "manual optimization is refused: write the loop with a vf.Trainer, with a phase for each optimizer.",
                Severity.CANNOT,
            )


def metric_objects(script: Script) -> Iterator[Advice]:
    for call in script.nodes(ast.Call):
        if script.name_of(call.func).startswith("torchmetrics."):
            yield script.advice(
                call,
                "what it has counted differs by worker, so that Lightning's steps are refused with it. Log a mean over "
                "the batch (`self.log(..., batch_size=n)`), or let every worker validate on its own: "
                "VirtualFlowStrategy(..., share_validation=False). In a loop of your own: trainer.evaluate.",
                Severity.CHECK,
            )


def others(script: Script) -> Iterator[Advice]:
    yield from advise_calls(script, OTHERS)


RULES = (hugging_face, several_devices, lightning, metric_objects, others)
