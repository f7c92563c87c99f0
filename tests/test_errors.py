"""``virtualflow.errors`` draws every exception of this project, and what it draws is what there is."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from pathlib import Path

from virtualflow import errors
from virtualflow.errors import VirtualFlowError

SOURCE = Path(errors.__file__).parent
DRAWN = re.compile(r"^([│ ]*)(?:├──|└──) (\w+)", re.MULTILINE)
SIGNAL = re.compile(r"^- (\w+)", re.MULTILINE)


def bases_of(node: ast.ClassDef) -> set[str]:
    return {base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in node.bases}


def exceptions_elsewhere() -> dict[str, str]:
    """The file of every exception class outside of ``errors``, by its name."""
    known = {
        name for name, value in vars(builtins).items() if inspect.isclass(value) and issubclass(value, BaseException)
    }
    known |= {name for name, value in vars(errors).items() if inspect.isclass(value)}
    files = [file for file in SOURCE.rglob("*.py") if file != Path(errors.__file__)]
    classes = [(node, file) for file in files for node in ast.walk(ast.parse(file.read_text()))
               if isinstance(node, ast.ClassDef)]  # fmt: skip
    result: dict[str, str] = {}
    while more := {
        node.name: file.name for node, file in classes if bases_of(node) & known and node.name not in result
    }:
        result |= more
        known |= more.keys()
    return result


def test_the_tree_is_drawn_as_it_is() -> None:
    drawn, parents = {}, ["VirtualFlowError"]
    for indent, name in DRAWN.findall(errors.__doc__ or ""):
        depth = len(indent) // 4 + 1
        drawn[name] = parents[depth - 1]
        parents[depth:] = [name]
    classes = [value for value in vars(errors).values() if inspect.isclass(value) and value is not VirtualFlowError]
    assert drawn == {each.__name__: each.__base__.__name__ for each in classes if each.__base__ is not None}


def test_no_other_module_defines_an_exception_but_the_signals_that_are_listed() -> None:
    assert exceptions_elsewhere().keys() == set(SIGNAL.findall(errors.__doc__ or ""))
