"""``evaluate`` and ``predict``: the same split over virtual nodes as training, so no result depends on the mapping."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
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
from virtualflow.train.bystanders import Bystanders
from virtualflow.train.data import Feed, Request
from virtualflow.train.loss import read_metric
from virtualflow.train.peers import Peers, gather_packed, unpacked
from virtualflow.train.scalars import read_pairs, reduce_pairs
from virtualflow.train.seeding import reseed
from virtualflow.train.state import Parts

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

        def attempt() -> Tensor:
            calls = self._peers.announce("evaluate", global_step, pass_.length)
            watched = Bystanders(metric_fn, self._parts, self._state, "metric_fn")
            watched.watch_pass()
            for place, output in self._outputs(pass_, mine, feed, metric_fn):
                mine[place] = read_metric(output)
            watched.check("it changes it")
            calls.check()
            return reduce_pairs(mine, len(pass_.shards), self._peers.group)

        pairs = read_pairs(self._peers.agree(attempt))
        weight = sum(weight for _, weight in pairs)
        if weight == 0:
            raise LossError("the weights that metric_fn returned add up to 0, so there is no mean to take")
        return sum(total for total, _ in pairs) / weight

    def predict(self, pass_: Pass, feed: Feed, predict_fn: PredictFn, global_step: int) -> Tensor:
        """The model's outputs for every example, on every worker, packed for ``unpack``."""
        mine: dict[int, Any] = {}

        def attempt() -> Tensor:
            calls = self._peers.announce("predict", global_step, pass_.length)
            for place, output in self._outputs(pass_, mine, feed, predict_fn):
                mine[place] = _to_cpu(output, pass_.shards[place])
            calls.check()
            return gather_packed(mine, self._peers.group)

        return self._peers.agree(attempt)

    def _outputs(self, pass_: Pass, done: Container[int], feed: Feed, function: Function) -> Iterator[tuple[int, Any]]:
        # After the loss of a worker only what is missing is computed.
        shards = [
            (place, shard) for place, shard in pass_.of(self._peers.nodes(pass_.virtual_nodes)) if place not in done
        ]
        feed.announce(shard for _, shard in shards)
        buffers = Buffers(self._parts)
        with _in_eval_mode(self._model), torch.no_grad():
            for place, request in shards:
                self._peers.membership.leave_early()  # the others will compute what is missing
                faults.reach("evaluate")
                shard = feed.take(request)
                reseed(derive(self._seed, "inference", place))
                yield place, function(self._model, shard.batch)
                buffers.compare()
                buffers.restore()


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


def _to_cpu(value: Any, request: Request) -> Any:
    if isinstance(value, Tensor):
        if value.dim() == 0 or len(value) != len(request.indices):
            raise LossError(
                f"predict got a tensor of shape {tuple(value.shape)} for a shard of {len(request.indices)} examples: "
                "the first dimension must count examples. Give predict_fn=, which returns one row for each."
            )
        return value.cpu().clone()
    if isinstance(value, Mapping):
        return {str(key): _to_cpu(item, request) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_to_cpu(item, request) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    raise LossError(
        f"predict got a value of type {type(value).__name__} from the model, expected tensors, or dicts, lists and "
        "tuples of them. Give predict_fn=, which picks them out."
    )


def unpack(packed: Tensor, pass_: Pass) -> Any:
    """The outputs that ``predict`` has packed, in the order of the dataset."""
    everyone: dict[int, Any] = {}
    for outputs in unpacked(packed):
        everyone |= outputs
    return _joined([everyone[place] for place in range(len(pass_.shards))])


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
