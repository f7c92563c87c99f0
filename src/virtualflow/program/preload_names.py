"""What a program imports of installed packages: loaded once, before its workers are forked. Found by reading it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from virtualflow.program.manifest import Program

# Importing these starts no thread and no process, and leaves accelerators alone.
SAFE = frozenset(
    {
        "accelerate",
        "datasets",
        "diffusers",
        "einops",
        "evaluate",
        "huggingface_hub",
        "lightning",
        "lightning_fabric",
        "numpy",
        "pandas",
        "peft",
        "PIL",
        "pytorch_lightning",
        "safetensors",
        "scipy",
        "sentencepiece",
        "sklearn",
        "tiktoken",
        "timm",
        "tokenizers",
        "torch",
        "torchaudio",
        "torchmetrics",
        "torchvision",
        "transformers",
        "trl",
        "virtualflow",
    }
)
# Variables that are read when something is used, and not when a package is imported.
READ_LATE = ("CUDA_", "CUBLAS_", "MASTER_", "MLFLOW_", "NCCL_", "TOKENIZERS_PARALLELISM", "VF_", "WANDB_")
ANY = "*"  # a variable whose name the code computes


def of_program(program: Program, snapshot: Path) -> tuple[str, ...]:
    """The dotted names that its files import at their top, as far as these are known to be safe.

    None if the program sets variables of its environment: a package may read them when it is imported.
    """
    names: dict[str, None] = {}
    for file in program.modules.values():
        copy = program.copies.get(file)
        try:
            tree = ast.parse((snapshot / copy if copy is not None else Path(file)).read_bytes(), file)
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue  # the worker that imports it reports the error
        if not all(name.startswith(READ_LATE) for name in _variables_set(tree)):
            return ()
        names |= dict.fromkeys(_imported_at_top(tree))
    own = {name.split(".")[0] for name in program.modules}
    return tuple(name for name in names if (top := name.split(".")[0]) in SAFE and top not in own)


def _imported_at_top(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}".removesuffix(".*") for alias in node.names)


def _variables_set(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and _is_environment(node.value) and not isinstance(node.ctx, ast.Load):
            yield _constant(node.slice)
        elif isinstance(node, ast.AugAssign) and _is_environment(node.target):
            yield ANY
        elif isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if isinstance(called, ast.Attribute) and _is_environment(called.value):
                yield from _set_by_method(name, node)
            elif name in ("putenv", "unsetenv", "load_dotenv"):
                yield _constant(node.args[0]) if node.args and name != "load_dotenv" else ANY


def _set_by_method(name: str, call: ast.Call) -> Iterator[str]:
    if name in ("setdefault", "pop"):
        yield _constant(call.args[0]) if call.args else ANY
    elif name == "update":
        yield from (keyword.arg or ANY for keyword in call.keywords)
        for given in call.args:
            yield from map(_constant, given.keys) if isinstance(given, ast.Dict) else [ANY]
    elif name in ("clear", "popitem"):
        yield ANY


def _is_environment(node: ast.expr) -> bool:
    return getattr(node, "attr", getattr(node, "id", "")) == "environ"


def _constant(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ANY
