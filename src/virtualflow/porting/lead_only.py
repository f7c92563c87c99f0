"""What one process alone does: prints, logs, progress."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from virtualflow.porting.advice import Advice, Severity
from virtualflow.porting.ranks import asks_for_first, is_guarded
from virtualflow.porting.script import Script, is_named

LEAD = (
    "`{test}:`, after the Trainer is made. Another worker may lead later: nothing that training needs may stand there."
)
SAVES = (
    "every worker calls `trainer.save(path)`, and the lead writes: take it out of this `if`. What is left of it: "
    "`if trainer.is_lead:`."
)
LOGGERS = ("wandb.init", "mlflow.start_run", "SummaryWriter", "neptune.init_run", "comet_ml.Experiment")
RECORDS = ("wandb.log", "mlflow.log_metric", "mlflow.log_metrics", "add_scalar", "add_scalars")


def conditions(script: Script) -> Iterator[Advice]:
    choices: list[ast.If | ast.IfExp] = [*script.nodes(ast.If), *script.nodes(ast.IfExp)]
    for node in choices:
        if not asks_for_first(script, node.test):
            continue
        inside = ast.walk(node)
        saves = any(
            isinstance(part, ast.Call) and is_named(script.name_of(part.func), "torch.save", "save_state")
            for part in inside
        )
        yield script.advice(node, SAVES if saves else LEAD.format(test=_condition(script, node.test)))


def flags(script: Script) -> Iterator[Advice]:
    """``master_process = rank == 0``"""
    for node in script.nodes(ast.Assign):
        if isinstance(node.value, ast.Compare) and asks_for_first(script, node.value):
            yield script.advice(
                node, "delete it: `trainer.is_lead` says so at any time. Another worker may lead later."
            )


def _condition(script: Script, test: ast.expr) -> str:
    others = (
        [condition for condition in test.values if not asks_for_first(script, condition)]
        if isinstance(test, ast.BoolOp)
        else []
    )
    joined = " and ".join(["trainer.is_lead", *(script.text(condition) for condition in others)])
    return f"if {joined}" if isinstance(getattr(test, "op", ast.And()), ast.And) else "if trainer.is_lead"


def loggers(script: Script) -> Iterator[Advice]:
    for call in script.called(*LOGGERS):
        yield script.advice(
            call,
            "one run for the job: under `if trainer.is_lead`, made when it is first needed, with a fixed id or folder, "
            "so that the next lead continues it. Without any of this, `vf tensorboard JOB` shows losses and scores.",
        )
    for call in script.called(*RECORDS):
        if not is_guarded(script, call):
            yield script.advice(call, "only on the lead: `if trainer.is_lead:`.")
    for call in script.called("watch"):
        if is_named(script.name_of(call.func), "wandb.watch"):
            yield script.advice(
                call, "delete it: its hooks see the gradients of one virtual node, on one device.", Severity.CANNOT
            )


RULES = (conditions, flags, loggers)
