"""What ``loss_fn`` uses besides the model and was not declared: found in a worker's first step, and named.

A frozen teacher is harmless. A module whose buffers change in forward, a target network that the loop moves, a tensor
or a generator in a closure are not: each virtual node would leave something behind for the next one on its worker, and
a worker that joins would begin with another one.
"""

from __future__ import annotations

import dis
import functools
import random
import re
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from virtualflow.errors import HiddenStateError
from virtualflow.train import script_state
from virtualflow.train.checks import is_compiled, named_in
from virtualflow.train.state import Parts, checksum, described, flattened

Stateful = nn.Module | Tensor | torch.Generator | np.random.Generator | np.random.RandomState | random.Random
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_DEPTH = 3  # functions that call functions
Print = tuple[Any, ...]


_trained: weakref.WeakSet[Parts] = weakref.WeakSet()  # by some Trainer of this process, which may change them


class UndeclaredState:
    """Watches what *loss_fn* uses that is neither in the model nor in ``state=``."""

    def __init__(
        self, loss_fn: Callable[..., Any], parts: Parts, state: tuple[Any, ...], what: str = "loss_fn"
    ) -> None:
        _trained.add(parts)
        self._what = what
        self._loss_fn = loss_fn
        self._parts = parts
        self._state = state
        self._declared = {id(item) for item in state}
        self._prints: dict[int, tuple[str, Stateful, Print]] = {}
        self._own: set[int] = set()  # modules and tensors of the job
        self._written = _written_by(loss_fn)
        self.set_anew: list[str] = []  # by a virtual node: harmless, unless the next one reads it

    @contextmanager
    def watched(self, step: int, node: int) -> Iterator[None]:
        """Look at what a virtual node uses, and refuse what it leaves changed.

        A name that it sets anew, as a class that keeps its last batch does, is noted: a replay tells if it matters.
        """
        self._own = {id(module) for module in self._parts.modules()}
        self._own |= {id(tensor) for tensor in self._parts.parameters().values()} | {
            id(b[3]) for b in self._parts.buffers()
        }
        for name, item in _reachable(self._loss_fn):
            self._meet(item, name)
        # A hook on every module would make compiled code compile again, into other kernels with other bits.
        compiled = is_compiled(self._parts.model, self._loss_fn)
        hook = None if compiled else register_module_forward_pre_hook(lambda module, _: self._meet(module))
        held = self._held()
        try:
            yield
        finally:
            if hook is not None:
                hook.remove()
        self.check(f"virtual node {node} of step {step} has changed it", in_forward=True)
        if changed := [
            place for place, (one, other) in enumerate(zip(held, self._held(), strict=True)) if one != other
        ]:
            raise HiddenStateError(
                f"loss_fn changes state[{changed[0]}], in virtual node {node} of step {step}. Each worker would change "
                "it for its own virtual nodes, and again when a step is replayed. Change it in the loop, from what "
                "trainer.step returns."
            )

    def watch_pass(self) -> None:
        """Take note of what the function names before it runs over a dataset; ``check`` looks at it again."""
        for name, item in _reachable(self._loss_fn):
            self._meet(item, name)

    def _held(self) -> list[list[str]]:
        """What the script has declared to the job and is no module, in words."""
        return [
            [] if isinstance(item, nn.Module) else [described(v) for _, v in flattened(script_state.take(item), "")]
            for item in self._state
        ]

    def check(self, when: str, *, in_forward: bool = False) -> None:
        """Refuse what has changed since it was first seen."""
        trained = set() if in_forward else {id(module) for parts in _trained for module in parts.modules()}
        # A name may stand for another tensor by now. If the loop has done that, Replicas sees whether it did so on all.
        by_loop = self._what == "loss_fn" and not in_forward
        named = {} if by_loop else dict(_reachable(self._loss_fn))
        for name, item, before in self._prints.values():
            if in_forward and self._sets(name) and named.get(name) is not item and _print(item) == before:
                self.set_anew += [name] if name not in self.set_anew else []
                continue
            current = named.get(name, item) if type(named.get(name, item)) is type(item) else item
            if id(item) not in trained and _print(current) != before:
                raise HiddenStateError(_reason(self._what, name, item, when, in_forward))

    def tensors(self) -> Iterator[tuple[str, str]]:
        """The tensors and generators that the function names and nobody declared, in words: on all workers the same."""
        for name, item in _reachable(self._loss_fn):
            if id(item) in self._own | self._declared or isinstance(item, nn.Module) or self._sets(name):
                continue
            yield f"{self._what}'s {name!r}", " ".join(map(str, _print(item)))

    def numbers(self) -> dict[str, str]:
        """The numbers and the like that the function's own code names."""
        plain = self._loss_fn.__func__ if isinstance(self._loss_fn, MethodType) else self._loss_fn
        named = named_in(plain) if isinstance(plain, FunctionType) else ()
        return {name: repr(value) for name, value in named if isinstance(value, bool | int | float | str)}

    def _sets(self, name: str) -> bool:
        """Whether the function's own code gives *name* another value."""
        return any(part in self._written for part in re.split(r"\W+", name))

    def _meet(self, item: Stateful, name: str | None = None) -> None:
        if id(item) in self._own or id(item) in self._prints or id(item) in self._declared:
            return
        if isinstance(item, nn.Module) and (_tensor_ids(item) <= self._own or self._is_within_another(item)):
            self._own.add(id(item))
            return
        self._prints[id(item)] = (name or _name_of(item, self._loss_fn), item, _print(item))

    def _is_within_another(self, item: nn.Module) -> bool:
        known = (other for _, other, _ in self._prints.values() if isinstance(other, nn.Module))
        return any(item is module for other in known for module in other.modules())


def _written_by(function: Callable[..., Any]) -> set[str]:
    """The attributes and variables that *function* sets, or a method that it calls on its object."""
    plain = function.__func__ if isinstance(function, MethodType) else function
    owner = type(function.__self__) if isinstance(function, MethodType) else type(function)
    codes: list[CodeType] = [plain.__code__] if isinstance(plain, FunctionType) else []
    if not codes and isinstance(call := vars(owner).get("__call__"), FunctionType):
        codes = [call.__code__]
    written: set[str] = set()
    for code in codes:  # which grows meanwhile
        for instruction in dis.get_instructions(code):
            if instruction.opname in ("STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF"):
                written.add(instruction.argval)
        reached = [const for const in code.co_consts if isinstance(const, CodeType)]
        methods = (getattr(owner, name, None) for name in code.co_names)
        reached += [method.__code__ for method in methods if isinstance(method, FunctionType)]
        codes += [further for further in reached if further not in codes]
    return written


def _tensor_ids(module: nn.Module) -> set[int]:
    return {id(tensor) for tensor in (*module.parameters(), *module.buffers())}


def _print(item: Stateful) -> Print:
    """What changes when *item* changes."""
    if isinstance(item, nn.Module):
        return tuple(checksum(tensor) for tensor in (*item.parameters(), *item.buffers()))
    if isinstance(item, Tensor):
        return (checksum(item),)
    return (repr(script_state.take(item)),) if not isinstance(item, torch.Generator) else (checksum(item.get_state()),)


def _reachable(function: Callable[..., Any]) -> Iterator[tuple[str, Stateful]]:
    """Tensors, generators and modules that the code of *function* names, with their names."""
    seen: set[int] = set()

    def within(value: Any, name: str, depth: int) -> Iterator[tuple[str, Stateful]]:
        if id(value) in seen or depth > _DEPTH:
            return
        seen.add(id(value))
        if isinstance(value, functools.partial):
            yield from within(value.func, name, depth)
            for number, item in enumerate((*value.args, *value.keywords.values())):
                yield from within(item, f"{name}, argument {number}", depth + 1)
        elif isinstance(value, MethodType):
            yield from within(value.__func__, name, depth)
            yield from attributes(value.__self__, "self", depth)
        elif isinstance(value, FunctionType):
            for other, item in named_in(value):
                yield from within(item, other, depth + 1)
        elif isinstance(value, (Tensor, *_GENERATORS)):
            yield name, value
        elif isinstance(value, nn.Module):
            pass  # seen when it is called, as one that is only named may never be
        elif isinstance(value, dict | list | tuple):
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                if isinstance(item, (Tensor, *_GENERATORS)):
                    yield f"{name}[{key!r}]", item
        elif depth == 0:
            yield from attributes(value, name, depth)

    def attributes(owner: Any, name: str, depth: int) -> Iterator[tuple[str, Stateful]]:
        for key, item in getattr(owner, "__dict__", {}).items():
            if not isinstance(owner, nn.Module):
                yield from within(item, f"{name}.{key}", depth + 1)

    yield from within(function, getattr(function, "__name__", "loss_fn"), 0)


def _name_of(item: Stateful, function: Callable[..., Any]) -> str:
    """What the script calls *item*, as far as can be seen from *function*."""
    plain = function.__func__ if isinstance(function, MethodType) else function
    places: list[tuple[str, Any]] = []
    if isinstance(plain, FunctionType):
        places = [*named_in(plain), *plain.__globals__.items()]
    if isinstance(function, MethodType):
        places += [(f"self.{key}", value) for key, value in getattr(function.__self__, "__dict__", {}).items()]
    return next((name for name, value in places if value is item), type(item).__name__)


def _reason(function: str, name: str, item: Stateful, when: str, in_forward: bool) -> str:
    type_name = type(item).__name__
    what = f"{function} uses {name!r} ({type_name}), which is not part of the job, and {when}."
    if function != "loss_fn":
        return (
            f"{what} Each worker calls it for its own part of the dataset, and sees no more. Return (total, weight), "
            "or take everything from trainer.predict(dataset, predict_fn), which gives all of it to every worker."
        )
    if isinstance(item, nn.Module):
        return (
            f"{what} What a virtual node leaves there would depend on the mapping, and a worker that joins would "
            "begin with "
            f"another one. Put it into the job: vf.Trainer(..., state=[{name}])."
        )
    if isinstance(item, Tensor):
        remedy = (
            "Make it a buffer of a module, and put that into state=[...]."
            if in_forward
            else "Put it into a vf.State() in state=[...]."
        )
        return f"{what} Its value would depend on the mapping. {remedy}"
    return (
        f"{what} Its numbers would depend on which virtual nodes ran before on the same worker. Draw from the "
        "global generators of "
        "torch, random or numpy: they are seeded for each virtual node."
    )
