"""Loops that only look at the model: tests, validation, predictions."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from virtualflow.porting.advice import Advice, Severity
from virtualflow.porting.script import FunctionNode, Script, is_named, what_it_goes_over
from virtualflow.porting.training_loop import backward_calls, counts

_TENSORS = ("parameters", "named_parameters", "buffers", "named_buffers", "state_dict", "state_dict.items", "items")
WITHOUT_GRADIENTS = ("no_grad", "inference_mode")


def evaluations(script: Script) -> Iterator[Advice]:
    for place in places(script):
        all_loops = [node for node in ast.walk(place) if isinstance(node, ast.For | ast.comprehension)]
        loops = [loop for loop in all_loops if not _is_over_tensors(script, loop)]
        if loops and not any(_encloses(script, place, call) for call in backward_calls(script)):
            yield script.advice(place, _instead(script, loops), Severity.CHECK)
        elif not all_loops and (around := _loop_over_data(script, place)) is not None:
            yield script.advice(around, _instead(script, [around]), Severity.CHECK)


def _is_over_tensors(script: Script, loop: ast.For | ast.comprehension) -> bool:
    """Whether a loop goes over a model's own tensors: an average of the weights is no test."""
    calls = [node for node in ast.walk(loop.iter) if isinstance(node, ast.Call)]
    return any(is_named(script.name_of(call.func), *_TENSORS) for call in calls)


def _loop_over_data(script: Script, place: ast.AST) -> ast.For | None:
    """The loop around a block without gradients, if it goes over data and trains nothing."""
    for loop in script.loops_around(place)[:1]:
        trains = any(_encloses(script, loop, call) for call in backward_calls(script))
        if isinstance(loop, ast.For) and not counts(script, loop) and not trains:
            return loop
    return None


def places(script: Script) -> Iterator[ast.With | FunctionNode]:
    """Where the script asks for no gradients."""
    candidates: list[ast.With | FunctionNode] = [*script.nodes(ast.With), *script.nodes(ast.FunctionDef)]
    return (node for node in candidates if _is_without_gradients(script, node))


def _encloses(script: Script, place: ast.AST, node: ast.AST) -> bool:
    return any(outer is place for outer in script.around(node))


def _instead(script: Script, loops: list[ast.For | ast.comprehension]) -> str:
    data = [script.text(what_it_goes_over(loop)) for loop in loops if not counts(script, loop)]
    loader = next((name for name in data if name.isidentifier()), "test_set")
    return (
        f"works as it is, but then every device does all of it. `score = trainer.evaluate({loader}, metric_fn)` shares "
        "it out, with `metric_fn(model, batch)` returning (total, weight), such as (right answers, examples); "
        "`trainer.predict` returns the outputs. Every worker must call it: not under `if trainer.is_lead`."
    )


def _is_without_gradients(script: Script, node: ast.With | FunctionNode) -> bool:
    names = [item.context_expr for item in node.items] if isinstance(node, ast.With) else node.decorator_list
    return any(
        is_named(
            script.name_of(expression.func if isinstance(expression, ast.Call) else expression), *WITHOUT_GRADIENTS
        )
        for expression in names
    )


RULES = (evaluations,)
