"""A user's script as the rules look at it: its calls by full name, what its variables hold, and what encloses what."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from functools import cached_property
from typing import TypeVar

from virtualflow.errors import ConfigError
from virtualflow.porting.advice import Advice, Severity

LONGEST_TEXT = 60
LONGEST_LINE = 100
UNKNOWN = "..."
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
LoopNode = ast.For | ast.While
_Node = TypeVar("_Node", bound=ast.AST)
_WRAPPERS = ("enumerate", "tqdm", "trange", "islice", "cycle", "iter", "track", "log_every")  # of what a loop goes over


class Script:
    """One file. Names are full where an import says so: ``dist.barrier`` is ``torch.distributed.barrier``."""

    def __init__(self, code: bytes, file: str) -> None:
        self.tree = _parsed(code, file)
        self._lines = code.decode(errors="replace").splitlines()
        self._nodes = list(ast.walk(self.tree))
        self._parents = {child: node for node in self._nodes for child in ast.iter_child_nodes(node)}
        self._origins = dict(_imported(self._nodes))
        self.calls = sorted(self.nodes(ast.Call), key=lambda call: (call.lineno, call.col_offset))
        self.made_by = dict(self._assigned_calls())

    def nodes(self, node_type: type[_Node]) -> Iterator[_Node]:
        """All nodes of this kind."""
        return (node for node in self._nodes if isinstance(node, node_type))

    def imports(self, *modules: str) -> bool:
        """Whether something is imported from one of these packages."""
        return any(origin == module or origin.startswith(f"{module}.") for origin in self.origins for module in modules)

    @property
    def origins(self) -> tuple[str, ...]:
        """The full names of what is imported."""
        return tuple(self._origins.values())

    def name_of(self, node: ast.AST | None) -> str:
        """The full name of what an expression names; ``?`` for a part of it that has none."""
        parts: list[str] = []
        while True:
            if isinstance(node, ast.Attribute):
                parts.append(node.attr)
                node = node.value
            elif isinstance(node, ast.Subscript):
                node = node.value
            else:
                break
        first = self._origins.get(node.id, node.id) if isinstance(node, ast.Name) else "?"
        return ".".join([first, *reversed(parts)])

    def called(self, *names: str) -> Iterator[ast.Call]:
        """Calls of these functions or methods, each given by the end of its full name."""
        return (call for call in self.calls if is_named(self.name_of(call.func), *names))

    def named(self, *names: str) -> Iterator[ast.AST]:
        """Where these are named, called or not."""
        return (node for node in self._nodes if isinstance(node, ast.Name | ast.Attribute) and self._is(node, names))

    def _is(self, node: ast.AST, names: tuple[str, ...]) -> bool:
        return not isinstance(self._parents.get(node), ast.Attribute) and is_named(self.name_of(node), *names)

    def origin_of(self, node: ast.AST | None) -> str:
        """Which function or class made what an expression names, if the script says so."""
        return self.made_by.get(self.name_of(node), "")

    def assigned_to(self, call: ast.Call) -> str:
        """The name that a call's result is given, if it is given one."""
        parent = self._parents.get(call)
        targets = parent.targets if isinstance(parent, ast.Assign) else []
        return self.text(targets[0]) if targets and isinstance(targets[0], ast.Name | ast.Attribute) else ""

    @cached_property
    def declared(self) -> frozenset[str]:
        """The names in ``state=`` of a Trainer that the script has already."""
        given = (argument(call, "state") for call in self.called("virtualflow.Trainer"))
        nodes = (node for value in given if value is not None for node in ast.walk(value))
        return frozenset(self.text(node) for node in nodes if isinstance(node, ast.Name | ast.Attribute))

    def text(self, node: ast.AST | None) -> str:
        """The code of a small expression, to be repeated in an advice."""
        if node is None:
            return UNKNOWN
        try:
            text = ast.unparse(node)
        except RecursionError:  # a sum of a thousand terms, say
            return UNKNOWN
        return text if len(text) <= LONGEST_TEXT and "\n" not in text else UNKNOWN

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """What encloses *node*, from the inside out."""
        while (parent := self._parents.get(node)) is not None:
            yield parent
            node = parent

    def function_of(self, node: ast.AST) -> FunctionNode | None:
        """The function that *node* stands in."""
        return next((outer for outer in self.around(node) if isinstance(outer, FunctionNode)), None)

    def loops_around(self, node: ast.AST) -> list[LoopNode]:
        """The loops that *node* stands in, from the inside out, as far as its function goes."""
        loops: list[LoopNode] = []
        for outer in self.around(node):
            if isinstance(outer, FunctionNode | ast.Lambda | ast.ClassDef):
                break
            if isinstance(outer, LoopNode):
                loops.append(outer)
        return loops

    def advice(self, node: ast.AST, instead: str, severity: Severity = Severity.CHANGE) -> Advice:
        """Advice about the line on which *node* begins."""
        line = int(getattr(node, "lineno", 1))
        seen = self._lines[line - 1].strip() if line <= len(self._lines) else ""
        return Advice(line, seen if len(seen) <= LONGEST_LINE else f"{seen[:LONGEST_LINE]}...", instead, severity)

    def _assigned_calls(self) -> Iterator[tuple[str, str]]:
        for node in self._nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    yield from self._pairs(target, node.value)
            elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
                yield from self._pairs(node.target, node.value)
            elif isinstance(node, ast.withitem) and node.optional_vars is not None:
                yield from self._pairs(node.optional_vars, node.context_expr)

    def _pairs(self, target: ast.AST, value: ast.AST | None) -> Iterator[tuple[str, str]]:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, other in zip(target.elts, value.elts, strict=False):
                yield from self._pairs(one, other)
        elif isinstance(value, ast.Call) and isinstance(target, ast.Name | ast.Attribute):
            yield self.name_of(target), self.name_of(value.func)


def is_named(full: str, *names: str) -> bool:
    """Whether a full name ends with one of these names."""
    return any(full == name or full.endswith(f".{name}") for name in names)


def last_part(name: str) -> str:
    return name.rpartition(".")[2]


def argument(call: ast.Call, keyword: str, place: int | None = None) -> ast.expr | None:
    """The argument of this name, or at this place."""
    for given in call.keywords:
        if given.arg == keyword:
            return given.value
    if place is not None and len(call.args) > place and not any(isinstance(arg, ast.Starred) for arg in call.args):
        return call.args[place]
    return None


def is_constant(node: ast.AST | None, *values: object) -> bool:
    return isinstance(node, ast.Constant) and any(node.value is value or node.value == value for value in values)


def what_it_goes_over(loop: LoopNode | ast.comprehension) -> ast.expr | None:
    """What a ``for`` goes over, without ``enumerate`` and the like."""
    over = None if isinstance(loop, ast.While) else loop.iter
    while isinstance(over, ast.Call) and over.args:
        called = over.func.attr if isinstance(over.func, ast.Attribute) else getattr(over.func, "id", "")
        if called not in _WRAPPERS:
            break
        over = over.args[0]
    return over


def _parsed(code: bytes, file: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in strings, which are no concern of ours
            return ast.parse(code, file)
    except SyntaxError as error:
        where = f"{file}, line {error.lineno}," if error.lineno else file
        raise ConfigError(
            f"{where} can't be read as Python: {error.msg}. Check that `python {file}` starts, with Python 3.11 or "
            "newer."
        ) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{file} can't be read as Python: {error or type(error).__name__}.") from None


def _imported(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (
                    alias.asname or alias.name.partition(".")[0],
                    alias.name if alias.asname else alias.name.partition(".")[0],
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"
