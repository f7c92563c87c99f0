"""The loop itself: backward passes, updates, accumulation, epochs and steps."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from virtualflow.porting.advice import Advice, Severity
from virtualflow.porting.optimizers import (
    DONE_BY_STEP,
    is_scaler,
    is_schedule,
    receiver,
    stepped,
)
from virtualflow.porting.script import UNKNOWN, LoopNode, Script, argument, is_constant, is_named, what_it_goes_over
from virtualflow.porting.several_optimizers import model_of, phases
from virtualflow.porting.training_loop import (
    TrainingLoop,
    accumulation,
    backward_calls,
    count_of,
    counts,
    is_accumulating,
    remainders,
    training_loops,
    updates_of,
)

NODES = "8"
ONE_STEP = (
    "delete it: one `trainer.step(batch)` is one update. batch_size= times {accum} and virtual_nodes={accum} give the "
    "same micro-batches, on any number of devices."
)
NO_DIVISION = "leave the division out: the Trainer divides once, by the true number of examples."


def loops(script: Script) -> Iterator[Advice]:
    """Each training loop once, with what takes its place."""
    seen: set[int] = set()
    for loop in training_loops(script):
        place = loop.over_batches or loop.backward
        if id(place) not in seen:
            seen.add(id(place))
            yield script.advice(place, _instead(script, loop))
        if (epochs := loop.over_epochs) is not None and id(epochs) not in seen:
            seen.add(id(epochs))
            name, over = script.text(epochs.target), what_it_goes_over(epochs)
            from_zero = not isinstance(over, ast.Call) or len(over.args) < 2 or is_constant(over.args[0], 0)
            counted = "" if from_zero else f"; {name} counts from 0 there"
            yield script.advice(epochs, f"`for {name} in trainer.epochs({count_of(script, epochs)}):`{counted}")


def _instead(script: Script, loop: TrainingLoop) -> str:
    optimizers, backward_passes = updates_of(script, loop)
    if len(optimizers) > 1 and backward_passes > 1:
        return phases(script, optimizers)
    lines = ["import virtualflow as vf", "", *_loss_function(script, loop), "", f"trainer = {_trainer(script, loop)}"]
    batches = loop.over_batches
    if batches is not None and counts(script, batches):
        lines += _by_steps(script, batches)
    else:
        over = what_it_goes_over(batches) if batches is not None else None
        loader = script.text(over) if over is not None else "train_set"
        lines.append(f"for batch in trainer.batches({loader}):")
    lines.append(f"    {loop.loss} = trainer.step(batch)")
    return "\n".join(["a function of the batch, and a Trainer that calls it:", *lines])


def _loss_function(script: Script, loop: TrainingLoop) -> Iterator[str]:
    yield "def loss_fn(model, batch):"
    batches = loop.over_batches
    if isinstance(batches, ast.For) and not counts(script, batches):
        target = batches.target
        if isinstance(target, ast.Tuple) and isinstance(batches.iter, ast.Call):
            called = script.name_of(batches.iter.func)
            target = target.elts[-1] if is_named(called, "enumerate") else target
        if (names := script.text(target).strip("()")) != "batch":
            yield f"    {names} = batch"
    around = script.loops_around(loop.backward)  # the innermost one may be over micro-batches
    first = around[0].body[0].lineno if around else loop.backward.lineno
    last = loop.backward.lineno - 1
    if first <= last:
        lines = f"lines {first} to {last}" if first < last else f"line {first}"
        yield f"    ...  # what computes the loss, in {lines}"
    yield f"    return {loop.loss}  # a mean over the examples of the batch; or (total, weight)"


def _trainer(script: Script, loop: TrainingLoop) -> str:
    optimizers, _ = updates_of(script, loop)
    accum = next(iter(accumulation(script)), "")
    batch = _batch_size(script, loop.over_batches)
    parts = [
        model_of(script, optimizers[0]) if optimizers else "model",
        f"[{', '.join(optimizers)}]" if len(optimizers) > 1 else "".join(optimizers) or "optimizer",
        "loss_fn",
        f"batch_size={batch}{f' * {accum}' if accum else ''}",
        f"virtual_nodes={accum or NODES}",
    ]
    schedules = [name for name in script.made_by if is_schedule(script, ast.Name(name)) and name.isidentifier()]
    if schedules:
        parts.append(f"state=[{', '.join(schedules)}]")
    for call in script.called("clip_grad_norm_"):
        parts.append(f"clip_grad_norm={script.text(argument(call, 'max_norm', 1))}")
        break
    if is_named(script.origin_of(receiver(loop.backward)), "Fabric"):
        parts.append(f"backward={script.text(loop.backward.func)}")
    parts += [f"grad_scaler={name}" for name, origin in script.made_by.items() if is_named(origin, "GradScaler")][:1]
    return f"vf.Trainer({', '.join(parts)})"


def _batch_size(script: Script, loop: LoopNode | None) -> str:
    """Of the loader that the loop goes over, if the script makes it here; else of the only one."""
    over = what_it_goes_over(loop) if loop is not None else None
    loaders = list(script.called("DataLoader"))
    chosen = [call for call in loaders if script.assigned_to(call) == script.text(over)] or loaders[:1]
    if chosen:
        return script.text(argument(chosen[0], "batch_size", 1))
    return next((script.text(node) for node in script.named("batch_size")), UNKNOWN)


def _by_steps(script: Script, loop: LoopNode) -> Iterator[str]:
    """How a loop that counts gets its data."""
    count = count_of(script, loop)
    calls = [node for node in ast.walk(loop) if isinstance(node, ast.Call)]
    over = loop.iter if isinstance(loop, ast.For) else None
    if isinstance(over, ast.Call) and len(over.args) == 3:  # range(0, len(x), size): slices of tensors
        yield "train_set = torch.utils.data.TensorDataset(...)  # the tensors that the loop slices"
        yield "for batch in trainer.batches(train_set):"
    elif any(script.name_of(call.func) == "next" for call in calls):
        yield f"for batch in trainer.steps({count}, train_set):  # or its DataLoader; begun again whenever it ends"
    else:
        drawn = next((script.text(call.func) for call in calls if "batch" in script.name_of(call.func).lower()), "")
        batch = f"what {drawn} draws, with that number of examples" if drawn else "that number of examples"
        yield f"for batch in trainer.steps({count}, batch_fn):  # batch_fn(size) returns {batch}"


def updates(script: Script) -> Iterator[Advice]:
    for call in (*backward_calls(script), *script.called("zero_grad")):
        yield script.advice(call, DONE_BY_STEP)
    for call in stepped(script):
        if not call.args or is_scaler(script, receiver(call)):
            yield script.advice(call, DONE_BY_STEP)


def accumulating(script: Script) -> Iterator[Advice]:
    names, losses = accumulation(script), {loop.loss for loop in training_loops(script)}
    for accum in names:
        text = ONE_STEP.format(accum=accum)
        for call in stepped(script):
            for around in script.around(call):
                if isinstance(around, ast.If) and any(script.text(m.right) == accum for m in remainders(around.test)):
                    yield script.advice(around, text)
        for loop in script.nodes(ast.For):
            if is_accumulating(script, loop) and count_of(script, loop) == accum:
                yield script.advice(loop, text)
    divisions: list[ast.BinOp | ast.AugAssign] = [*script.nodes(ast.BinOp), *script.nodes(ast.AugAssign)]
    for node in divisions:
        left, right = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
        if not isinstance(node.op, ast.Div) or script.text(right) not in names:
            continue
        if "loss" in script.text(left) or script.text(left) in losses:
            yield script.advice(node, NO_DIVISION)


def counters(script: Script) -> Iterator[Advice]:
    """Numbers that a worker which joins counts from 0 again."""
    for loop in training_loops(script):
        batches = loop.over_batches
        over = batches.iter if isinstance(batches, ast.For) else None
        if batches is not None and isinstance(over, ast.Call) and is_named(script.name_of(over.func), "enumerate"):
            yield script.advice(
                batches,
                "enumerate counts from 0 on a worker that joins: `batch.step` counts within the epoch, "
                "`trainer.global_step` over all.",
                Severity.CHECK,
            )


RULES = (loops, updates, accumulating, counters)
