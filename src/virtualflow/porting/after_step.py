"""What a loop does with a batch after its update: by then the loss is a number, and the rest was in ``loss_fn``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeVar

from virtualflow.porting.advice import Advice
from virtualflow.porting.optimizers import receiver
from virtualflow.porting.script import LoopNode, Script, is_named
from virtualflow.porting.training_loop import TrainingLoop, counts, training_loops, updates_of

_Node = TypeVar("_Node", bound=ast.AST)
_OF_TENSORS = ("item", "detach", "cpu", "data")


def numbers(script: Script) -> Iterator[Advice]:
    """``loss.item()``"""
    for loop in _loops(script):
        for call in _later(loop, ast.Call, loop.outermost):
            is_of_tensors = isinstance(call.func, ast.Attribute) and call.func.attr in _OF_TENSORS
            if is_of_tensors and script.text(receiver(call)) == loop.loss:
                yield script.advice(call, f"`{loop.loss}`: what `trainer.step(batch)` returns is a float.")


def parts_of_the_batch(script: Script) -> Iterator[Advice]:
    """``correct += (out.argmax(1) == y).sum()``"""
    for loop in _loops(script):
        gone = _in_loss_fn(script, loop)
        lines: dict[int, list[str]] = {}
        for node in _later(loop, ast.Name):
            if isinstance(node.ctx, ast.Load) and node.id in gone:
                lines.setdefault(node.lineno, []).append(node.id)
        for statement in _later(loop, ast.stmt):
            if names := list(dict.fromkeys(lines.pop(statement.lineno, []))):
                yield script.advice(
                    statement,
                    f"{', '.join(f'`{name}`' for name in names)}: in loss_fn only, which sees a part of the batch. "
                    'Have it return such numbers by name, `return loss, {"right": (right, len(x))}`: their mean over '
                    f'the batch is `{loop.loss}.metrics["right"]`.',
                )


def _loops(script: Script) -> Iterator[TrainingLoop]:
    """Those that one Trainer without phases takes the place of."""
    seen: set[int] = set()
    for loop in training_loops(script):
        optimizers, backward_passes = updates_of(script, loop)
        has_phases = len(optimizers) > 1 and backward_passes > 1
        if loop.over_batches is None or has_phases or id(loop.over_batches) in seen:
            continue
        seen.add(id(loop.over_batches))
        if loop.backward in set(ast.walk(loop.over_batches)):
            yield loop


def _later(loop: TrainingLoop, node_type: type[_Node], within: LoopNode | None = None) -> list[_Node]:
    """What comes after the backward pass in the loop over batches, or in the one *within* which that stands."""
    around, line = within or loop.over_batches, loop.backward.end_lineno or loop.backward.lineno
    assert around is not None
    inside = (node for node in ast.walk(around) if isinstance(node, node_type))
    later = [node for node in inside if int(getattr(node, "lineno", 0)) > line]
    return sorted(later, key=lambda node: (int(getattr(node, "lineno", 0)), int(getattr(node, "col_offset", 0))))


def _in_loss_fn(script: Script, loop: TrainingLoop) -> set[str]:
    """The names that the loop gives to a batch and to what it computes of it, and not again after its update."""
    batches = loop.over_batches
    assert batches is not None
    before = [
        node
        for node in ast.walk(batches)
        if isinstance(node, ast.Assign) and node.lineno < loop.backward.lineno and _calls(node.value)
    ]
    targets: list[ast.AST] = [target for node in before for target in node.targets]
    if isinstance(batches, ast.For) and not counts(script, batches):
        targets.append(_batch_of(script, batches))
    names = {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
    again = {node.id for node in _later(loop, ast.Name) if isinstance(node.ctx, ast.Store)}
    return names - again - {loop.loss, "batch"}


def _calls(value: ast.AST) -> bool:
    return any(isinstance(node, ast.Call) for node in ast.walk(value))


def _batch_of(script: Script, loop: LoopNode) -> ast.AST:
    assert isinstance(loop, ast.For)
    is_numbered = isinstance(loop.iter, ast.Call) and is_named(script.name_of(loop.iter.func), "enumerate")
    return loop.target.elts[-1] if is_numbered and isinstance(loop.target, ast.Tuple) else loop.target


RULES = (numbers, parts_of_the_batch)
