"""Optimizers and what belongs to them: schedules, clipping, loss scaling; and those that can't be used."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from virtualflow.porting.advice import Advice, Severity
from virtualflow.porting.call_rules import CallRule, advise_calls
from virtualflow.porting.script import Script, argument, is_named, last_part

DONE_BY_STEP = "delete it: `trainer.step(batch)` runs the backward pass, scales, clips, updates and clears gradients."
CALLS = (
    CallRule(
        ("LBFGS",),
        "refused: it evaluates the loss several times within a step, at points that it chooses. Use a first-order "
        "optimizer, such as SGD or AdamW.",
        Severity.CANNOT,
    ),
)


def is_optimizer(script: Script, node: ast.AST | None) -> bool:
    """Whether an expression names an optimizer, as far as the script shows."""
    origin, name = script.origin_of(node), last_part(script.name_of(node)).lower()
    if origin:
        known = origin.startswith("torch.optim.") or is_named(origin, "create_optimizer", "create_optimizer_v2")
        return (known or "opt" in name) and not is_schedule(script, node)
    return "opt" in name and "sched" not in name


def is_schedule(script: Script, node: ast.AST | None) -> bool:
    """Whether an expression names a learning-rate schedule."""
    origin = script.origin_of(node)
    if origin:
        return _makes_schedule(origin)
    return "sched" in last_part(script.name_of(node)).lower()


def is_scaler(script: Script, node: ast.AST | None) -> bool:
    origin = script.origin_of(node)
    return is_named(origin, "GradScaler") or (not origin and "scaler" in last_part(script.name_of(node)).lower())


def _makes_schedule(origin: str) -> bool:
    return (
        "lr_scheduler." in origin
        or is_named(origin, "get_scheduler")
        or (last_part(origin).startswith("get_") and "schedule" in origin)
    )


def receiver(call: ast.Call) -> ast.expr | None:
    """``x`` of ``x.step()``."""
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def stepped(script: Script) -> list[ast.Call]:
    """The calls that update a model: ``optimizer.step()``, ``scaler.step(optimizer)``."""
    steps = []
    for call in script.called("step"):
        by = receiver(call)
        if by is not None and (is_optimizer(script, by) or is_scaler(script, by)):
            steps.append(call)
    return steps


def optimizer_of(script: Script, call: ast.Call) -> str:
    """The name of the optimizer that a call updates with."""
    by = receiver(call)
    return script.text(call.args[0] if is_scaler(script, by) and call.args else by)


def calls(script: Script) -> Iterator[Advice]:
    yield from advise_calls(script, CALLS)


def closures(script: Script) -> Iterator[Advice]:
    for call in stepped(script):
        if is_optimizer(script, receiver(call)) and call.args:
            yield script.advice(
                call,
                "a step with a closure has no counterpart: `trainer.step(batch)` takes one gradient of the global "
                "batch, from loss_fn(model, batch).",
                Severity.CANNOT,
            )


def schedules(script: Script) -> Iterator[Advice]:
    for call in script.calls:
        if not _makes_schedule(script.name_of(call.func)):
            continue
        name = script.assigned_to(call) or "schedule"
        if name in script.declared:
            continue
        plateau = is_named(script.name_of(call.func), "ReduceLROnPlateau")
        with_what = " with a value of trainer.evaluate or trainer.step, which every worker gets" if plateau else ""
        yield script.advice(
            call,
            f"keep it, and declare it: `vf.Trainer(..., state=[{name}])`. `{name}.step()` stays in place{with_what}.",
        )


def learning_rates(script: Script) -> Iterator[Advice]:
    """Rates that are set by hand, from a number that the loop counts."""
    for node in script.nodes(ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and getattr(target.slice, "value", None) == "lr":
                yield script.advice(
                    node,
                    "works as it is, if the rate follows from `trainer.global_step`, `batch.step` or the epoch: a "
                    "counter of the script's own starts again when a worker joins.",
                    Severity.CHECK,
                )


def clipping(script: Script) -> Iterator[Advice]:
    for call in script.called("clip_grad_norm_"):
        yield script.advice(call, _by_norm(script, argument(call, "max_norm", 1)))
    for call in script.called("clip_grad_value_"):
        yield script.advice(call, _by_value(script, argument(call, "clip_value", 1)))
    for call in script.called("clip_gradients"):  # Fabric's
        most = argument(call, "max_norm", 3)
        is_norm = most is not None or argument(call, "clip_val", 2) is None
        advice = _by_norm(script, most) if is_norm else _by_value(script, argument(call, "clip_val", 2))
        yield script.advice(call, advice)


def _by_norm(script: Script, most: ast.expr | None) -> str:
    return f"delete it, and write `vf.Trainer(..., clip_grad_norm={script.text(most)})`."


def _by_value(script: Script, most: ast.expr | None) -> str:
    return (
        "delete it, and write `vf.Trainer(..., on_gradients=clip)`, with `def clip(model): "
        f"torch.nn.utils.clip_grad_value_(model.parameters(), {script.text(most)})`: it is called with the gradients "
        "of the global batch."
    )


def scaling(script: Script) -> Iterator[Advice]:
    for call in script.called("GradScaler"):
        name = script.assigned_to(call) or "scaler"
        yield script.advice(call, f"keep it, and pass it on: `vf.Trainer(..., grad_scaler={name})`.")
    for call in script.called("unscale_", "update"):
        if is_scaler(script, receiver(call)):
            yield script.advice(call, DONE_BY_STEP)


def autocast(script: Script) -> Iterator[Advice]:
    for call in script.called("autocast"):
        yield script.advice(
            call,
            "goes into loss_fn, around the forward pass; keep it in metric_fn, too. The Trainer runs the backward pass "
            "outside of it.",
            Severity.CHECK,
        )


def model_in(script: Script, call: ast.Call) -> str:
    """``model`` of ``SGD(model.parameters())``."""
    for node in ast.walk(call):
        if isinstance(node, ast.Call) and is_named(script.name_of(node.func), "parameters", "named_parameters"):
            return script.text(receiver(node))
    return ""


RULES = (calls, closures, schedules, learning_rates, clipping, scaling, autocast)
