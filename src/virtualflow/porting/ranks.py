"""Where a script asks which process it is, and how many there are."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from virtualflow.porting.advice import Advice
from virtualflow.porting.script import Script, is_constant, is_named, last_part

RANKS = ("rank", "local_rank", "global_rank", "get_rank", "process_index", "local_process_index", "rank_id")
VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")
WORLD_SIZES = ("world_size", "get_world_size", "num_processes", "n_gpu", "num_gpus", "ngpus_per_node")
FLAGS = (
    "is_main_process",
    "is_local_main_process",
    "is_world_process_zero",
    "is_global_zero",
    "is_main",
    "is_master",
    "master_process",
    "main_process",
    "is_rank_zero",
    "is_rank0",
)
NO_RANKS = (
    "delete it: `vf run --devices N` starts and numbers the workers. Nothing may depend on their number, "
    "which can change while the job runs; `trainer.is_lead` is the one that prints."
)
TUNED = (
    "leave the number of devices out: batch_size= is the batch of all of them together, and losses and learning rates "
    "are those of that batch, however many run it."
)


def asks_for_first(script: Script, test: ast.expr) -> bool:
    """Whether a condition asks if this process is the first."""
    for node in ast.walk(test):
        if isinstance(node, ast.Compare) and len(node.comparators) == 1:
            other = node.comparators[0]
            zero = is_constant(other, 0) or (isinstance(other, ast.List | ast.Tuple | ast.Set) and _has_zero(other))
            if zero and _is_rank(script, node.left):
                return True
        elif isinstance(node, ast.Name | ast.Attribute) and last_part(script.name_of(node)).lower() in FLAGS:
            return True
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and _is_rank(script, test.operand)


def is_guarded(script: Script, node: ast.AST) -> bool:
    """Whether only one process comes to *node*, be it by the script's own condition or by ``trainer.is_lead``."""
    tests = [outer.test for outer in script.around(node) if isinstance(outer, ast.If)]
    return any(asks_for_first(script, test) or any(_names_lead(part) for part in ast.walk(test)) for test in tests)


def _names_lead(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "is_lead"


def _has_zero(values: ast.List | ast.Tuple | ast.Set) -> bool:
    return any(is_constant(value, 0) for value in values.elts)


def _is_rank(script: Script, node: ast.expr) -> bool:
    named: ast.expr = node.func if isinstance(node, ast.Call) else node
    name = last_part(script.name_of(named)).lower()
    if name in RANKS or name.endswith("_rank"):
        return True
    return any(isinstance(part, ast.Constant) and part.value in VARIABLES[:2] for part in ast.walk(node))


def numbers(script: Script) -> Iterator[Advice]:
    """Calls for a rank or a number of processes, beyond conditions and products that are advised on themselves."""
    for call in script.called("get_rank", "get_world_size", "get_local_rank"):
        parent = next(script.around(call), None)
        is_asked = any(
            isinstance(outer, ast.If | ast.IfExp) and asks_for_first(script, outer.test)
            for outer in script.around(call)
            if call in ast.walk(getattr(outer, "test", ast.Pass()))
        )
        if not is_asked and not (isinstance(parent, ast.BinOp) and _is_world_size(script, call)):
            yield script.advice(call, NO_RANKS)


def variables(script: Script) -> Iterator[Advice]:
    """What torchrun leaves in the environment, and the option that its predecessor passed."""
    for node in script.nodes(ast.Constant):
        parent = next(script.around(node), None)
        is_option = node.value in ("--local_rank", "--local-rank") and isinstance(parent, ast.Call)
        if is_option or (node.value in VARIABLES and _reads_environment(script, parent)):
            yield script.advice(node, NO_RANKS)


def _reads_environment(script: Script, node: ast.AST | None) -> bool:
    if isinstance(node, ast.Subscript):
        return is_named(script.name_of(node.value), "environ")
    if isinstance(node, ast.Compare):  # "RANK" in os.environ
        return any(is_named(script.name_of(compared), "environ") for compared in node.comparators)
    return isinstance(node, ast.Call) and is_named(
        script.name_of(node.func), "getenv", "environ.get", "environ.setdefault"
    )


def world_sizes(script: Script) -> Iterator[Advice]:
    """Learning rates, batches and losses that follow the number of devices."""
    changes: list[ast.BinOp | ast.AugAssign] = [*script.nodes(ast.BinOp), *script.nodes(ast.AugAssign)]
    for node in changes:
        sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.value,)
        scales = isinstance(node.op, ast.Mult | ast.Div | ast.FloorDiv)
        if scales and any(_is_world_size(script, side) for side in sides):
            yield script.advice(node, TUNED)


def _is_world_size(script: Script, node: ast.AST) -> bool:
    named = node.func if isinstance(node, ast.Call) else node
    return last_part(script.name_of(named)).lower().endswith(WORLD_SIZES)


RULES = (numbers, variables, world_sizes)
