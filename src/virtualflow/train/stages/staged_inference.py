"""``evaluate`` and ``predict`` with a model that is cut: shards pass through the stages, one after another."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from virtualflow.core import faults
from virtualflow.core.cell_schedule import FORWARD, CellRun
from virtualflow.core.seeds import derive
from virtualflow.errors import LossError
from virtualflow.train.ahead import Request
from virtualflow.train.data import Feed
from virtualflow.train.inference import Keep, Pass, default_predict, packable, rows_on_host
from virtualflow.train.loss import read_metric
from virtualflow.train.packed_values import gather_packed, unpacked
from virtualflow.train.peers import Peers
from virtualflow.train.scalars import read_pairs, reduce_pairs
from virtualflow.train.seeding import reseed
from virtualflow.train.shared_errors import LocalError, raise_first
from virtualflow.train.stages.crossings import Crossings, MessageSizes, crossing, outputs_of
from virtualflow.train.stages.lent_batch import lent
from virtualflow.train.stages.staged_state import StagedState

OutputFn = Callable[[Any, Any], Any]  # of the last stage's output and the batch


class StagedInference:
    """Runs passes through the stages, together with the other workers."""

    def __init__(self, state: StagedState, seed: int, peers: Peers) -> None:
        self._state = state
        self._seed = seed
        self._peers = peers

    def evaluate(self, pass_: Pass, feed: Feed, metric_fn: OutputFn, global_step: int) -> float:
        """The mean of a metric of the output and the batch: totals over weights, in the order of the dataset."""

        count, met = len(pass_.shards), None

        def attempt() -> Tensor:
            nonlocal met
            self._begin("evaluate", pass_, global_step)
            mine, met = self._run("evaluate", pass_, feed, metric_fn, lambda value, _: read_metric(value))
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

    def predict(self, pass_: Pass, feed: Feed, predict_fn: OutputFn, global_step: int) -> Tensor:
        """The last stage's output for every example, or what *predict_fn* makes of it and the batch, packed."""
        chosen = _output_alone if predict_fn is default_predict else predict_fn
        return self._gathered("predict", pass_, feed, chosen, rows_on_host, global_step)

    def map(self, pass_: Pass, feed: Feed, function: OutputFn, global_step: int) -> Tensor:
        """What *function* makes of the last stage's output and the batch, for every shard, packed."""
        return self._gathered("map", pass_, feed, function, lambda value, _: packable(value), global_step)

    def _gathered(self, call: str, pass_: Pass, feed: Feed, function: OutputFn, keep: Keep, global_step: int) -> Tensor:
        met: LocalError | None = None

        def attempt() -> Tensor:
            nonlocal met
            self._begin(call, pass_, global_step)
            mine, met = self._run(call, pass_, feed, function, keep)
            return gather_packed({"outputs": mine, "met": met and met.description}, self._peers.group)

        packed = self._peers.agree(attempt)
        raise_first((theirs["met"] for theirs in unpacked(packed)), met)
        return packed

    def _run(
        self, call: str, pass_: Pass, feed: Feed, function: OutputFn, keep: Keep
    ) -> tuple[dict[int, Any], LocalError | None]:
        """What *function* gives for the shards that end here, and the first error that it raises.

        After an error, shards go on through the stages: others wait for them.
        """
        mine: dict[int, Any] = {}
        met: LocalError | None = None
        with closing(self._outputs(pass_, feed)) as outputs:  # an error leaves no stage in eval mode
            for place, output, batch in outputs:
                if met is not None:
                    continue
                try:
                    with self._peers.inside(f"the function of trainer.{call}"):
                        mine[place] = keep(function(output, batch), pass_.shards[place])
                except Exception as error:
                    where = f"trainer.{call}, virtual node {pass_.shards[place].virtual_node}, shard {place}"
                    met = LocalError(error, where, self._peers.membership.device, place)
        return mine, met

    def _begin(self, call: str, pass_: Pass, global_step: int) -> None:
        self._peers.announce(call, global_step, pass_.length).check()
        self._state.settle()

    def _outputs(self, pass_: Pass, feed: Feed) -> Generator[tuple[int, Any, Any]]:
        """The outputs of those shards whose last stage runs here.

        All devices go through the shards in the same order, so that whoever waits for an input waits for one that works
        on it, or on an earlier one.
        """
        state, me = self._state, self._peers.membership.device
        cells, last = state.cells, state.cut.count - 1
        crossings = Crossings(self._peers.group, cells.virtual_nodes, state.device, MessageSizes())
        mine = [
            (place, shard, stage)
            for place, shard in enumerate(pass_.shards)
            for stage in range(cells.stages)
            if cells.routes[shard.virtual_node][stage] == me
        ]
        for _, shard, stage in mine:
            before = cells.routes[shard.virtual_node][stage - 1] if stage else me
            if before != me:
                crossings.expect(CellRun(FORWARD, stage, shard.virtual_node), state.rank_of(before))
        here: dict[tuple[int, int], Any] = {}
        batches: dict[int, Any] = {}
        with in_eval_mode(state.held.modules), torch.no_grad():
            for place, shard, stage in mine:
                faults.reach("evaluate")
                run = CellRun(FORWARD, stage, shard.virtual_node)
                inputs = here.pop((place, stage), None)
                if stage and inputs is None:
                    faults.reach("receive activations")
                    inputs = crossings.obtain(run)
                output = self._output(place, shard, stage, inputs, batches, feed)
                if stage == last:
                    yield place, output, batches.pop(place)
                    continue
                batches = {place: batches[place]} if place in batches else {}
                outputs = [crossing(tensor) for tensor in outputs_of(output, stage)]
                after = cells.routes[shard.virtual_node][stage + 1]
                if after == me:
                    here[place, stage + 1] = outputs
                else:
                    faults.reach("send activations")
                    crossings.ship(list(outputs), CellRun(FORWARD, stage + 1, shard.virtual_node), state.rank_of(after))
        crossings.finish()

    def _output(self, place: int, shard: Request, stage: int, inputs: Any, batches: dict[int, Any], feed: Feed) -> Any:
        state = self._state
        if state.cut.loads(stage) and place not in batches:
            batches[place] = feed.take(shard).batch
        x = None if inputs is None else inputs[0] if len(inputs) == 1 else tuple(inputs)
        state.held.renew_buffers(stage)
        reseed(derive(self._seed, "inference", place, stage))
        with lent(batches.get(place), f"stage {stage}") as batch:
            return state.cut.call(stage, state.held.modules[stage], x, batch)


def _output_alone(output: Any, batch: Any) -> Any:
    return output


@contextmanager
def in_eval_mode(modules: dict[int, nn.Module]) -> Iterator[None]:
    """The modules of all stages without dropout and the like, for a while."""
    training = [module for root in modules.values() for module in root.modules() if module.training]
    for root in modules.values():
        root.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
