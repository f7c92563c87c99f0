"""Buffers as a step sees them: every virtual node starts from the same values, and all of them make those of its end.

A forward may write a buffer, put another tensor in its place, make one on its first call, or one of another shape. What
it does with values is averaged over virtual nodes; a running maximum or minimum, which starts at an infinity, keeps its
extreme. One that is *born*, or changes its shape, is given to every worker, and the step is replayed with it.

On a CPU, what a virtual node has changed is found by comparing. An accelerator would have to be waited for: there,
those that are known to *move* count as changed. Whether another was changed all the same is read at the step's end: it
moves from then on, and the step is replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from virtualflow.train.new_buffers import NewBuffer
from virtualflow.train.state import Parts, joined

_EIGHT_BYTES = (torch.int64, torch.uint64)


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer, and the module that holds it: a forward may write it, or put another tensor in its place."""

    name: str
    module: nn.Module
    key: str
    tensor: Tensor

    def current(self) -> Tensor:
        held = self.module._buffers.get(self.key)
        return self.tensor if held is None else held.to(self.tensor.device)

    def keeps_its_form(self) -> bool:
        current = self.current()
        return current.shape == self.tensor.shape and current.dtype == self.tensor.dtype

    def put_back(self) -> None:
        """Copy a tensor that took this one's place into it."""
        if (current := self.current()) is not self.tensor:
            with torch.no_grad():
                self.tensor.copy_(current)
            self.module._buffers[self.key] = self.tensor

    @property
    def carrier(self) -> Tensor:
        """A tensor of the form in which this one's changes are summed."""
        if self.tensor.dtype in _EIGHT_BYTES:
            return torch.empty((*self.tensor.shape, 2), dtype=torch.int64, device=self.tensor.device)
        return torch.view_as_real(self.tensor) if self.tensor.is_complex() else self.tensor


class Buffers:
    """The buffers of all modules of a job."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.all: list[Buffer] = []
        self.listing = 0  # a number for the set that they are
        self.changed: list[int] = []  # by the virtual node that ran last
        self.born: dict[str, NewBuffer] = {}  # by all virtual nodes of this attempt on this worker
        self.own_form: dict[str, bool] = {}  # those whose shape is the forward's business: whether they are persistent
        self.extremes: dict[str, str] = {}  # running maxima and minima: "max" or "min"
        self._infinite: dict[str, str | None] = {}  # what each buffer held when it was first seen: "max", "min", "nan"
        self._weighted: list[int] = []  # the integer buffers that ``_weight`` is for
        self._weight = torch.zeros(0, dtype=torch.int64)
        self._relist()

    def hold(self) -> None:
        """Take the buffers' values as those that the step starts from; they may be another set than before."""
        if [buffer[:3] for buffer in self._parts.buffers()] != self._listed or not all(
            map(Buffer.keeps_its_form, self.all)
        ):
            self._relist()  # the script has changed them: a mask for pruning, a larger table
            return
        self.compare()
        kept = sorted({*self.changed, *self._on_device})
        for index in kept:
            self.all[index].put_back()
        _copy([self._start[index] for index in kept], [self.all[index].tensor for index in kept])
        self.changed = []

    def begin(self, moving: set[int]) -> None:
        """An attempt at a step begins; those in *moving* count as changed by every virtual node."""
        self.moving = moving
        self._still = [index for index in self._on_device if index not in moving]
        self._unexpected: Tensor | None = None

    def compare(self) -> None:
        """Find out which buffers differ from their values at the step's start."""
        # By value: batch norm writes its statistics without raising their version.
        self.changed = [index for index, buffer in enumerate(self.all) if self._has_changed(index, buffer)]

    def _has_changed(self, index: int, buffer: Buffer) -> bool:
        if index in self._on_device:
            return index in self.moving or buffer.module._buffers.get(buffer.key) is not buffer.tensor
        return not _is_equal(buffer.current(), self._start[index])

    def unexpected(self) -> tuple[list[int], Tensor]:
        """Those that did not count as changed in this attempt, and whether a virtual node has changed them."""
        return (
            (self._still, self._unexpected) if self._unexpected is not None else ([], torch.zeros(0, dtype=torch.bool))
        )

    def _look_for_unexpected(self) -> None:
        if self._still:
            odd = torch.stack([(self.all[index].tensor != self._start[index]).any() for index in self._still])
            self._unexpected = odd if self._unexpected is None else self._unexpected | odd

    def reset(self) -> None:
        """Set all buffers to their values at the step's start, whatever has happened since."""
        self.compare()
        self.restore()

    def restore(self) -> None:
        """Set every changed buffer to its value at the step's start; and those of which that is not known."""
        changed = sorted({*self.changed, *self._on_device})
        _copy([self.all[index].tensor for index in changed], [self._start[index] for index in changed])
        for buffer in self.all:
            if buffer.module._buffers.get(buffer.key) is not buffer.tensor:  # replaced, or removed
                buffer.module._buffers[buffer.key] = buffer.tensor
        for module, key in self._unknown():
            if key in self._absent.get(id(module), ()):
                module._buffers[key] = None
            else:
                del module._buffers[key]
        self.changed = []

    def end_node(self, node: int) -> bool:
        """Take note of buffers that virtual node *node* has made or enlarged; return whether there are any.

        Those that have another shape count no longer as changed.
        """
        self._look_for_unexpected()
        new_buffers = []
        for index in [index for index in self.changed if not self.all[index].keeps_its_form()]:
            buffer = self.all[index]
            if buffer.current().numel() > buffer.tensor.numel():
                new_buffers.append((buffer.name, buffer.module, buffer.key))
            self.changed.remove(index)
        if unknown := self._unknown():
            names = {id(module): name for name, module in self._parts.named_modules()}
            new_buffers += [(joined(names[id(module)], key), module, key) for module, key in unknown]
        for name, module, key in new_buffers:
            self._add_new(node, name, module, key)
        return bool(new_buffers)

    def adopt(self, new_buffers: dict[str, NewBuffer]) -> None:
        """Make the buffers that some worker's virtual node has made part of the job."""
        for name, new_buffer in new_buffers.items():
            owner = self._parts.owner_of(name)
            assert owner is not None, f"a buffer {name} was born in a module that this worker does not have"
            register(*owner, new_buffer.tensor, new_buffer.persistent)
            self.own_form[name] = new_buffer.persistent
        self.born = {}
        self._relist()

    def extreme(self, index: int) -> str | None:
        """Whether a buffer is a running "max" or "min": one that starts at an infinity, which can't be averaged."""
        name = self.all[index].name
        return self.extremes.get(name) or self._infinite[name]

    def differences(self, indices: list[int], weight: int) -> list[Tensor]:
        """How far these buffers are from their values at the step's start, times *weight*; exact for integers."""
        if not indices:
            return []
        # In few calls for all of them: a batch norm layer has three, and they are small.
        differences: dict[int, Tensor] = {}
        for device in dict.fromkeys(self._start[index].device for index in indices):
            here = [index for index in indices if self._start[index].device == device]
            currents = [_summable(self.all[index].current().detach()) for index in here]
            changes = list(torch._foreach_sub(currents, [_summable(self._start[index]) for index in here]))
            _split(changes)
            torch._foreach_mul_(changes, weight)
            differences |= zip(here, changes, strict=True)
        return [differences[index] for index in indices]

    def advance(self, indices: Sequence[int], differences: Sequence[Tensor]) -> None:
        """Move these buffers to their starts plus *differences*."""
        starts = [self._start[index] for index in indices]
        changes = [change.to(start.device) for start, change in zip(starts, differences, strict=True)]
        _copy([self.all[index].tensor for index in indices], _moved(starts, changes))

    def most(self, index: int, *, at_start: bool = False) -> Tensor:
        """A running maximum, or a minimum with its sign changed, so that the largest over virtual nodes counts."""
        value = (self._start[index] if at_start else self.all[index].current()).detach()
        wide = value.float() if value.element_size() < 4 else value
        return -wide if self.extremes[self.all[index].name] == "min" else wide.clone()

    def set_most(self, index: int, value: Tensor) -> None:
        """Set a running maximum or minimum to the largest that ``most`` gave over all virtual nodes."""
        buffer = self.all[index]
        buffer.tensor.copy_(-value if self.extremes[buffer.name] == "min" else value)

    def integers(self) -> Tensor:
        """A number that stands for the values of all changed integer buffers: virtual nodes must agree on them."""
        changed = [index for index in self.changed if not _has_fractions(self.all[index].tensor)]
        if not changed:
            return torch.zeros((), dtype=torch.int64)
        device = self.all[changed[0]].tensor.device
        values = torch.cat([_whole(self.all[index].current()).reshape(-1).to(device) for index in changed])
        return (values * self._weights(changed, values)).sum()

    def _weights(self, indices: list[int], values: Tensor) -> Tensor:
        """A large odd number for each of *values*, which are those of the buffers *indices*."""
        if self._weighted != indices or len(self._weight) != len(values):
            drawn = np.random.Generator(np.random.Philox(len(values))).integers(2**62, size=len(values))
            self._weighted, self._weight = list(indices), torch.from_numpy(2 * drawn + 1).to(values.device)
        return self._weight

    def form(self) -> dict[str, Any]:
        """What belongs to the job's state besides the values."""
        return {"own form": dict(self.own_form), "extremes": dict(self.extremes)}

    def set_form(self, form: dict[str, Any]) -> None:
        """Set what ``form`` returned; the values are in the modules already."""
        self.own_form, self.extremes = dict(form["own form"]), dict(form["extremes"])
        self._relist()

    def _add_new(self, node: int, name: str, module: nn.Module, key: str) -> None:
        tensor = module._buffers[key]
        assert tensor is not None
        new_buffer = NewBuffer(node, tensor.detach().clone(), key not in module._non_persistent_buffers_set)
        if name not in self.born or new_buffer.rank < self.born[name].rank:
            self.born[name] = new_buffer

    def _unknown(self) -> list[tuple[nn.Module, str]]:
        """Buffers that were not there, or None, when the step began."""
        unknown = []
        for module, count in zip(self._modules, self._counts, strict=True):
            if len(module._buffers) != count or id(module) in self._absent:
                known = self._known.get(id(module), ())
                unknown += [
                    (module, key) for key, held in module._buffers.items() if held is not None and key not in known
                ]
        return unknown

    def _relist(self) -> None:
        self.listing += 1
        listed = self._parts.buffers()
        self._listed = [entry[:3] for entry in listed]
        self.all = [Buffer(*entry) for entry in listed]
        self._start = [buffer.tensor.clone() for buffer in self.all]
        for buffer in self.all:
            if buffer.name not in self._infinite:
                self._infinite[buffer.name] = _infinity_in(buffer.tensor)
        self._on_device = {index for index, buffer in enumerate(self.all) if buffer.tensor.device.type != "cpu"}
        self.begin(set())
        self._modules = self._parts.modules()
        self._counts = [len(module._buffers) for module in self._modules]
        self._known: dict[int, set[str]] = {}
        self._absent: dict[int, set[str]] = {}
        for module in self._modules:
            for key, held in module._buffers.items():
                (self._absent if held is None else self._known).setdefault(id(module), set()).add(key)
        self.changed = []


def register(module: nn.Module, key: str, tensor: Tensor, persistent: bool) -> None:
    """Make *tensor* a buffer of *module*, whatever was there."""
    module._buffers.pop(key, None)
    module.__dict__.pop(key, None)
    module.register_buffer(key, tensor, persistent)


def _infinity_in(tensor: Tensor) -> str | None:
    if not tensor.is_floating_point() or torch.isfinite(tensor).all():
        return None
    if tensor.isnan().any():
        return "nan"
    return "max" if torch.isneginf(tensor).any() else "min"


def _is_equal(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


def _has_fractions(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _whole(tensor: Tensor) -> Tensor:
    """Integers of any form as int64."""
    return tensor.view(torch.int64) if tensor.dtype in _EIGHT_BYTES else tensor.to(torch.int64)


def _copy(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each of *sources*, in few launches."""
    with torch.no_grad():
        for form in dict.fromkeys((target.dtype, target.device) for target in targets):
            pairs = [
                (target, source)
                for target, source in zip(targets, sources, strict=True)
                if (target.dtype, target.device) == form
            ]
            torch._foreach_copy_([target for target, _ in pairs], [source for _, source in pairs])


def _summable(tensor: Tensor) -> Tensor:
    """*tensor* as numbers that can be subtracted without loss."""
    if tensor.is_complex():
        return torch.view_as_real(tensor)
    if tensor.dtype in _EIGHT_BYTES:
        return tensor.view(torch.int64)
    return tensor if tensor.is_floating_point() else tensor.double()


def _split(tensors: list[Tensor]) -> None:
    """Put in the place of integers of eight bytes their two halves, which float64 holds exactly."""
    places = [place for place, tensor in enumerate(tensors) if tensor.dtype == torch.int64]
    if places:
        whole = torch.cat([tensors[place].reshape(-1) for place in places])
        halves = torch.stack([whole & 0xFFFFFFFF, whole >> 32], dim=-1).double()
        for place, part in zip(places, halves.split([tensors[place].numel() for place in places]), strict=True):
            tensors[place] = part.reshape(*tensors[place].shape, 2)


def _moved(starts: Sequence[Tensor], differences: Sequence[Tensor]) -> list[Tensor]:
    """Each start plus its difference, in few launches for those of which a model has many."""
    moved = [torch.empty(0)] * len(starts)
    for dtype, device in dict.fromkeys((start.dtype, start.device) for start in starts):
        places = [place for place, start in enumerate(starts) if (start.dtype, start.device) == (dtype, device)]
        before, after = [starts[place] for place in places], [differences[place] for place in places]
        for place, value in zip(places, _moved_alike(dtype, before, after), strict=True):
            moved[place] = value
    return moved


def _moved_alike(dtype: torch.dtype, starts: list[Tensor], differences: list[Tensor]) -> Sequence[Tensor]:
    if dtype == torch.bool:
        return [start ^ (change != 0) for start, change in zip(starts, differences, strict=True)]
    if dtype.is_complex:
        changes = [torch.view_as_complex(change.contiguous()).to(dtype) for change in differences]
        return torch._foreach_add(starts, changes)
    if dtype in _EIGHT_BYTES:
        low, high = torch.cat([change.reshape(-1, 2) for change in differences]).to(torch.int64).unbind(-1)
        whole = torch.cat([start.view(torch.int64).reshape(-1) for start in starts]) + (high << 32) + low
        parts = whole.split([start.numel() for start in starts])
        return [part.reshape(start.shape).view(dtype) for part, start in zip(parts, starts, strict=True)]
    return torch._foreach_add(starts, [change.to(dtype) for change in differences])
