"""``evaluate`` and ``predict``: the same split over virtual nodes as training, so no result depends on the mapping."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from virtualflow.core.membership import Group
from virtualflow.core.seeds import derive
from virtualflow.core.sharding import Epoch
from virtualflow.errors import LossError
from virtualflow.train.data import Feed, Request
from virtualflow.train.loss import read_metric
from virtualflow.train.scalars import share_numbers
from virtualflow.train.seeding import reseed
from virtualflow.train.state import Buffers

MetricFn = Callable[[nn.Module, Any], Any]
PredictFn = Callable[[nn.Module, Any], Any]


class Pass:
    """One pass over a dataset in its own order, cut into shards by virtual node."""

    def __init__(self, length: int, sizes: Sequence[int]) -> None:
        epoch = Epoch(0, np.arange(length, dtype=np.int64), sizes)
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


def evaluate(
    model: nn.Module, pass_: Pass, nodes: Sequence[int], feed: Feed, metric_fn: MetricFn, seed: int, group: Group | None
) -> float:
    """The mean of a metric: totals over weights, summed in the order of the dataset."""
    mine = {place: read_metric(out) for place, out in _outputs(model, pass_, nodes, feed, metric_fn, seed)}
    pairs = share_numbers(mine, len(pass_.shards), group)
    weight = sum(weight for _, weight in pairs)
    if weight == 0:
        raise LossError("the weights that metric_fn returned add up to 0, so there is no mean to take")
    return sum(total for total, _ in pairs) / weight


def predict(
    model: nn.Module,
    pass_: Pass,
    nodes: Sequence[int],
    feed: Feed,
    predict_fn: PredictFn,
    seed: int,
    group: Group | None,
) -> Any:
    """The model's outputs for every example, in the order of the dataset, on every worker."""
    mine = {
        place: _to_cpu(out, pass_.shards[place]) for place, out in _outputs(model, pass_, nodes, feed, predict_fn, seed)
    }
    everyone = _share(mine, group)
    return _joined([everyone[place] for place in range(len(pass_.shards))])


def _outputs(
    model: nn.Module,
    pass_: Pass,
    nodes: Sequence[int],
    feed: Feed,
    function: Callable[[nn.Module, Any], Any],
    seed: int,
) -> Iterator[tuple[int, Any]]:
    shards = pass_.of(nodes)
    feed.announce(shard for _, shard in shards)
    buffers = Buffers(model)
    with _in_eval_mode(model), torch.no_grad():
        for place, request in shards:
            shard = feed.take(request)
            reseed(derive(seed, "inference", place))
            yield place, function(model, shard.batch)
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


def _share(mine: dict[int, Any], group: Group | None) -> dict[int, Any]:
    if group is None:
        return mine
    buffer = io.BytesIO()
    torch.save(mine, buffer)
    packed = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
    sizes = [torch.empty(1, dtype=torch.int64) for _ in range(group.size)]
    group.gather(torch.tensor([len(packed)]), sizes).wait()
    longest = max(int(size) for size in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: len(packed)] = packed
    parts = [torch.empty_like(padded) for _ in range(group.size)]
    group.gather(padded, parts).wait()
    everyone: dict[int, Any] = {}
    for part, size in zip(parts, sizes, strict=True):
        everyone |= torch.load(io.BytesIO(part[: int(size)].numpy().tobytes()), weights_only=True)
    return everyone


def _joined(parts: list[Any]) -> Any:
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(parts)
    if isinstance(first, dict):
        return {key: _joined([part[key] for part in parts]) for key in first}
    return type(first)(_joined(list(items)) for items in zip(*parts, strict=True))
