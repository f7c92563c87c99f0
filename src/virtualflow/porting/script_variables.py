"""What the script remembers between steps: best scores, counters, averages of the weights."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from virtualflow.porting.advice import Advice, Severity
from virtualflow.porting.call_rules import CallRule, advise_calls
from virtualflow.porting.script import LoopNode, Script, is_named, last_part
from virtualflow.porting.training_loop import training_loops

REMEMBERED = re.compile(r"best|patience|wait|bad|worse|improv|stale|trigger|ema|history|losses|smooth|count|min_|max_")
COUNTED = re.compile(r"(global|total|num|iter|n|cur|current)?_?(step|steps|iter|iters|iteration|iterations|iter_num)")
MODELS = re.compile(r"model|net|teacher|student|encoder|generator|critic")
_CONTAINERS = (ast.List, ast.Dict, ast.ListComp, ast.DictComp)
CALLS = (
    CallRule(
        ("AveragedModel", "ModelEMA", "ModelEmaV2", "ModelEmaV3", "ExponentialMovingAverage", "SWALR", "EMAModel"),
        "keep it, and declare it: an average of the weights goes into `vf.Trainer(..., state=[...])`, and is updated "
        "after `trainer.step(batch)`.",
    ),
)


def averages(script: Script) -> Iterator[Advice]:
    yield from advise_calls(script, CALLS)
    for call in script.called("deepcopy"):
        copied = script.text(call.args[0]) if call.args else ""
        name = script.assigned_to(call)
        if (
            name
            and name not in script.declared
            and MODELS.search(last_part(copied).lower())
            and not copied.endswith(")")
        ):
            yield script.advice(
                call,
                f"if training changes or reads `{name}` later, declare it: `vf.Trainer(..., state=[{name}])`.",
                Severity.CHECK,
            )


def remembered(script: Script) -> Iterator[Advice]:
    """Variables that begin before the loop, and that it changes and reads."""
    advised: set[str] = set()
    for training_loop in training_loops(script):
        loop = training_loop.outermost
        if loop is None:
            continue
        stored, read = _stored_in(loop), _read_in(loop)
        for node, name, value in _begun_before(script, loop):
            if name in advised or name in script.declared or name not in stored or name not in read:
                continue
            advised.add(name)
            yield from _advice(script, node, name, value)


def _advice(script: Script, node: ast.Assign, name: str, value: ast.expr) -> Iterator[Advice]:
    if COUNTED.fullmatch(name.lower()):
        yield script.advice(
            node,
            f"`trainer.global_step` counts the job's steps; `{name}` begins again on a worker that joins. Or keep it: "
            f"`progress = vf.State({name}={script.text(value)})` in state=[progress].",
        )
    elif isinstance(value, _CONTAINERS) and REMEMBERED.search(name.lower()):
        yield script.advice(node, f"declare it, if anything but a print reads it: `vf.Trainer(..., state=[{name}])`.")
    elif REMEMBERED.search(name.lower()):
        yield script.advice(
            node,
            f"keep it in the job: `progress = vf.State({name}={script.text(value)})`, `vf.Trainer(..., "
            f"state=[progress])`, and `progress.{name}` wherever it is used.",
        )


def _begun_before(script: Script, loop: LoopNode) -> Iterator[tuple[ast.Assign, str, ast.expr]]:
    """Assignments before the loop: each name in them, and its value."""
    scope = script.function_of(loop)
    for node in script.nodes(ast.Assign):
        if node.lineno < loop.lineno and script.function_of(node) is scope and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = list(zip(target.elts, value.elts, strict=False))
            for one, other in pairs:
                if isinstance(one, ast.Name) and _is_plain(script, other):
                    yield node, one.id, other


def _is_plain(script: Script, value: ast.expr) -> bool:
    if isinstance(value, ast.UnaryOp):
        return _is_plain(script, value.operand)
    if isinstance(value, ast.Call):
        return script.name_of(value.func) == "float"
    return isinstance(value, (ast.Constant, *_CONTAINERS)) or is_named(script.name_of(value), "inf")


def _stored_in(loop: LoopNode) -> set[str]:
    """What is assigned, appended to, or changed in place, as in ``average[name].mul_(0.9)``."""
    names = {node.id for node in ast.walk(loop) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    methods = [node for node in ast.walk(loop) if isinstance(node, ast.Attribute) and node.attr.endswith("_")]
    changed = {inner for node in methods for inner in ast.walk(node.value)}
    for node in ast.walk(loop):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
        ):
            names |= {node.func.value.id} if node.func.attr in ("append", "extend", "update") else set()
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node in changed:
            names.add(node.value.id)
    return names


def _read_in(loop: LoopNode) -> set[str]:
    read = {node.id for node in ast.walk(loop) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    changed = {
        node.target.id
        for node in ast.walk(loop)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    }
    return read | changed


RULES = (averages, remembered)
