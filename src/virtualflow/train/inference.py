"""``evaluate`` and ``predict``: the same split over virtual nodes as training, so no result depends on the mapping."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from virtualflow.core import faults
from virtualflow.core.seeds import derive
from virtualflow.core.sharding import Epoch
from virtualflow.errors import LossError
from virtualflow.train.buffers import Buffers
from virtualflow.train.data import Feed, Request
from virtualflow.train.loss import read_metric
from virtualflow.train.packed_values import gather_packed, unpacked
from virtualflow.train.peers import Peers
from virtualflow.train.scalars import read_pairs, reduce_pairs
from virtualflow.train.seeding import reseed
from virtualflow.train.shared_errors import LocalError, raise_first
from virtualflow.train.state import Parts
from virtualflow.train.undeclared_state import UndeclaredState

MetricFn = Callable[[nn.Module, Any], Any]
PredictFn = Callable[[nn.Module, Any], Any]


class Pass:
    """One pass over a dataset in its own order, cut into shards by virtual node."""

    def __init__(self, length: int, sizes: Sequence[int]) -> None:
        self.length = length
        epoch = Epoch(0, np.arange(length, dtype=np.int64), sizes)
        self.virtual_nodes = len(sizes)
        self.shards = [
            Request(0, step, node, 0, indices)
            for step in range(epoch.steps)
            for node, indices in enumerate(epoch.batch(step).shards)
            if len(indices)
        ]

    def of(self, nodes: Sequence[int]) -> list[tuple[int, Request]]:
        """The shards of *nodes*, each with its place in the pass."""
        mine = set(nodes)
        return [(place, shard) for place, shard in enumerate(self.shards) if shard.virtual_node in mine]


Function = Callable[[nn.Module, Any], Any]
Keep = Callable[[Any, Request], Any]  # what is kept of a function's output for a shard


class Inference:
    """Runs a function of the model over passes, together with the other workers."""

    def __init__(self, parts: Parts, state: tuple[Any, ...], seed: int, peers: Peers) -> None:
        self._parts = parts
        self._state = state
        self._model = parts.model
        self._seed = seed
        self._peers = peers

    def evaluate(self, pass_: Pass, feed: Feed, metric_fn: MetricFn, global_step: int) -> float:
        """The mean of a metric: totals over weights, summed in the order of the dataset."""
        mine: dict[int, tuple[float, float]] = {}
        count, met = len(pass_.shards), None

        def attempt() -> Tensor:
            nonlocal met
            calls = self._peers.announce("evaluate", global_step, pass_.length)
            watched = UndeclaredState(metric_fn, self._parts, self._state, "metric_fn")
            watched.watch_pass()
            met = self._run("evaluate", pass_, mine, feed, metric_fn, lambda output, _: read_metric(output))
            if met is None:
                watched.check("it changes it")
            calls.check()
            failed = {count: (1.0, 1.0)} if met is not None else {}
            return reduce_pairs(mine | failed, count + 1, self._peers.group)

        *pairs, (failed, _) = read_pairs(self._peers.agree(attempt))
        if failed == 1.0:
            self._peers.raise_met("evaluate", global_step, met)
            return self.evaluate(pass_, feed, metric_fn, global_step)  # the worker that has met it was lost meanwhile
        weight = sum(weight for _, weight in pairs)
        if weight == 0:
            raise LossError("the weights that metric_fn returned add up to 0, so there is no mean to take")
        return sum(total for total, _ in pairs) / weight

    def predict(self, pass_: Pass, feed: Feed, predict_fn: PredictFn, global_step: int) -> Tensor:
        """The model's outputs for every example, on every worker, packed for ``unpack``."""
        return self._gathered("predict", pass_, feed, predict_fn, rows_on_host, global_step)

    def map(self, pass_: Pass, feed: Feed, function: Function, global_step: int) -> Tensor:
        """What *function* gives for every shard, on every worker, packed for ``in_order``."""
        return self._gathered("map", pass_, feed, function, lambda output, _: packable(output), global_step)

    def _gathered(self, call: str, pass_: Pass, feed: Feed, function: Function, keep: Keep, global_step: int) -> Tensor:
        mine: dict[int, Any] = {}
        met: LocalError | None = None

        def attempt() -> Tensor:
            nonlocal met
            calls = self._peers.announce(call, global_step, pass_.length)
            met = self._run(call, pass_, mine, feed, function, keep)
            calls.check()
            return gather_packed({"outputs": mine, "met": met and met.description}, self._peers.group)

        packed = self._peers.agree(attempt)
        raise_first((theirs["met"] for theirs in unpacked(packed)), met)
        return packed

    def _run(
        self, call: str, pass_: Pass, done: dict[int, Any], feed: Feed, function: Function, keep: Keep
    ) -> LocalError | None:
        """Add what *function* gives for this worker's shards to *done*; return the error of the first that fails."""
        # After the loss of a worker only what is missing is computed.
        shards = [
            (place, shard) for place, shard in pass_.of(self._peers.nodes(pass_.virtual_nodes)) if place not in done
        ]
        feed.announce(shard for _, shard in shards)
        buffers = Buffers(self._parts)
        with _in_eval_mode(self._model), torch.no_grad():
            for place, request in shards:
                if self._peers.may_leave_early:
                    self._peers.membership.leave_early()  # the others will compute what is missing
                faults.reach("evaluate")
                try:
                    shard = feed.take(request)
                    reseed(derive(self._seed, "inference", place))
                    with self._peers.inside(f"the function of trainer.{call}"):
                        done[place] = keep(function(self._model, shard.batch), request)
                except Exception as error:
                    where = f"trainer.{call}, virtual node {request.virtual_node}, shard {place}"
                    return LocalError(error, where, self._peers.membership.device, place)
                finally:
                    buffers.reset()
        return None


@contextmanager
def _in_eval_mode(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def default_predict(model: nn.Module, batch: Any) -> Any:
    """``model(batch)``; of a tuple or list the first item goes in, of a dict everything by name."""
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, tuple | list):
        return model(batch[0])
    return model(batch)


def rows_on_host(value: Any, request: Request) -> Any:
    """What a model gave for a shard, in the host's memory, with a row for each example."""
    if isinstance(value, Tensor):
        if value.dim() == 0 or len(value) != len(request.indices):
            raise LossError(
                f"predict got a tensor of shape {tuple(value.shape)} for a shard of {len(request.indices)} examples: "
                "the first dimension must count examples. Give predict_fn=, which returns one row for each."
            )
        return value.cpu().clone()
    if isinstance(value, Mapping):
        return {str(key): rows_on_host(item, request) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [rows_on_host(item, request) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    raise LossError(
        f"predict got a value of type {type(value).__name__} from the model, expected tensors, or dicts, lists and "
        "tuples of them. Give predict_fn=, which picks them out."
    )


def _on_host(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, Mapping):
        return {key: _on_host(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_on_host(item) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    return value


def packable(value: Any) -> Any:
    """*value* on the host. Raises what packing it raises, here, where the error can be sent to all."""
    value = _on_host(value)
    unpacked(gather_packed(value, None))
    return value


def in_order(packed: Tensor, pass_: Pass) -> list[Any]:
    """The outputs for each shard, in the order of the dataset."""
    everyone: dict[int, Any] = {}
    for theirs in unpacked(packed):
        everyone |= theirs["outputs"]
    return [everyone[place] for place in range(len(pass_.shards))]


def unpack(packed: Tensor, pass_: Pass) -> Any:
    """The outputs that ``predict`` has packed, joined."""
    return _joined(in_order(packed, pass_))


def _joined(parts: list[Any]) -> Any:
    first = parts[0]
    if isinstance(first, Tensor):
        if odd := {tuple(part.shape[1:]) for part in parts} - {tuple(first.shape[1:])}:
            raise LossError(
                f"predict got rows of shape {tuple(first.shape[1:])} from one shard and {min(odd)} from another, which "
                "make no one tensor: each shard was padded to its own longest example. Pad to a fixed length in "
                "collate_fn, or let predict_fn return one row of a fixed shape for each example."
            )
        return torch.cat(parts)
    if isinstance(first, dict):
        return {key: _joined([part[key] for part in parts]) for key in first}
    return type(first)(_joined(list(items)) for items in zip(*parts, strict=True))
