"""Finds the loops that train, and what they go over."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from virtualflow.porting.optimizers import optimizer_of, receiver, stepped
from virtualflow.porting.script import UNKNOWN, LoopNode, Script, argument, is_named, last_part, what_it_goes_over

BACKWARD_OF_OTHERS = ("accelerator", "fabric", "engine", "model_engine")
_COUNTING = ("range", "trange", "count")


@dataclass(frozen=True, slots=True)
class TrainingLoop:
    """One backward pass, and the loops around it: also those around the call of the function that it stands in."""

    backward: ast.Call
    loss: str
    over_batches: LoopNode | None
    over_epochs: ast.For | None

    @property
    def outermost(self) -> LoopNode | None:
        return self.over_epochs or self.over_batches


def training_loops(script: Script) -> list[TrainingLoop]:
    return [_loop_of(script, call) for call in backward_calls(script)]


def updates_of(script: Script, loop: TrainingLoop) -> tuple[list[str], int]:
    """The optimizers that a loop updates with, in their order, and how many backward passes it makes."""
    around = [outer for outer in script.loops_around(loop.backward) if not is_accumulating(script, outer)]
    scope = around[0] if around else script.function_of(loop.backward) or script.tree
    inside = set(ast.walk(scope))
    names = dict.fromkeys(optimizer_of(script, call) for call in stepped(script) if call in inside)
    names.pop(UNKNOWN, None)
    losses = {_loss_of(script, call) for call in backward_calls(script) if call in inside}
    return list(names), len(losses)


def backward_calls(script: Script) -> Iterator[ast.Call]:
    for call in script.called("backward", "manual_backward"):
        if not is_named(script.name_of(call.func), "super.backward", "autograd.backward"):
            yield call


def is_accumulating(script: Script, loop: LoopNode) -> bool:
    """Whether a loop goes over the micro-batches of one update."""
    over = loop.iter if isinstance(loop, ast.For) else None
    if not (isinstance(over, ast.Call) and is_named(script.name_of(over.func), "range")):
        return False
    words = f"{script.text(over)} {script.text(getattr(loop, 'target', None))}"
    return "accum" in words or "micro" in words


def counts(script: Script, loop: LoopNode | ast.comprehension) -> bool:
    """Whether a loop counts steps, instead of going over data."""
    if isinstance(loop, ast.While):
        return True
    over = what_it_goes_over(loop)
    return isinstance(over, ast.Call) and is_named(script.name_of(over.func), *_COUNTING)


def count_of(script: Script, loop: LoopNode) -> str:
    """How often a loop that counts goes round, as the script puts it."""
    over = what_it_goes_over(loop)
    if isinstance(over, ast.Call) and over.args:
        return _difference(script, *reversed(over.args[:2]))
    compared: list[ast.expr] = []
    if isinstance(loop, ast.While):
        compared += [loop.test]
        compared += [node.test for node in ast.walk(loop) if isinstance(node, ast.If) and _breaks(node)]
    for test in compared:
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE | ast.Eq):
            return script.text(test.comparators[0])
    return UNKNOWN


def _difference(script: Script, end: ast.expr, start: ast.expr | None = None) -> str:
    """The length of ``range(start, end)``: of ``range(1, epochs + 1)``, epochs."""
    text, first = script.text(end), script.text(start) if start is not None else "0"
    if text.endswith(f" + {first}"):
        return text.removesuffix(f" + {first}")
    return text if first == "0" else f"{text} - {first}"


def _breaks(node: ast.If) -> bool:
    return any(isinstance(statement, ast.Break) for statement in node.body)


def accumulation(script: Script) -> list[str]:
    """The names of the numbers of micro-batches that make one update."""
    numbers: dict[str, None] = {}
    for call in stepped(script):
        for around in script.around(call):
            if isinstance(around, ast.If):
                numbers |= dict.fromkeys(script.text(remainder.right) for remainder in remainders(around.test))
    for loop in script.nodes(ast.For):
        if is_accumulating(script, loop):
            numbers[count_of(script, loop)] = None
    for call in script.called("Accelerator"):
        if (given := argument(call, "gradient_accumulation_steps")) is not None:
            numbers[script.text(given)] = None
    numbers.pop(UNKNOWN, None)
    return list(numbers)


def remainders(test: ast.expr) -> Iterator[ast.BinOp]:
    """``(i + 1) % accum`` in a condition."""
    return (node for node in ast.walk(test) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod))


def _loop_of(script: Script, backward: ast.Call) -> TrainingLoop:
    around = [loop for loop in script.loops_around(backward) if not is_accumulating(script, loop)]
    for _ in range(2):  # a step's function is called in a loop; an epoch's, too
        if len(around) < 2:
            around += _loops_of_caller(script, around[-1] if around else backward)
    over_batches = around[0] if around else None
    outer = around[1] if len(around) > 1 else None
    epochs = outer if isinstance(outer, ast.For) and counts(script, outer) else None
    return TrainingLoop(backward, _loss_of(script, backward), over_batches, epochs)


def _loops_of_caller(script: Script, node: ast.AST) -> list[LoopNode]:
    function = script.function_of(node)
    if function is None:
        return []
    for call in script.called(function.name):
        if script.function_of(call) is not function and (loops := script.loops_around(call)):
            return loops
    return []


def _loss_of(script: Script, backward: ast.Call) -> str:
    by = receiver(backward)
    if isinstance(by, ast.Call) and by.args:  # scaler.scale(loss).backward()
        by = by.args[0]
    elif last_part(script.name_of(by)) in BACKWARD_OF_OTHERS or is_named(
        script.name_of(backward.func), "manual_backward"
    ):
        by = backward.args[0] if backward.args else None
    name = script.text(by)
    return name if name.isidentifier() else "loss"
