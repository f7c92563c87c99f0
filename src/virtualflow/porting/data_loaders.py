"""Where a script's examples come from: DataLoaders, samplers, streams."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from virtualflow.porting import evaluation_loops
from virtualflow.porting.advice import Advice, Severity
from virtualflow.porting.call_rules import CallRule, advise_calls
from virtualflow.porting.script import Script, argument, is_constant, is_named

STREAM = (
    "use `vf.Stream(open_shard, shards=...)`: a DataLoader over an iterable can't say which examples a device that "
    "joins, or a job that resumes, should read next."
)
CALLS = (
    CallRule(
        ("DistributedSampler",),
        "delete it, and give the DataLoader shuffle=True: the Trainer gives each device its part of every batch.",
    ),
    CallRule(("set_epoch",), "delete it: the Trainer draws each epoch's order from the seed and the epoch."),
    CallRule(("WebDataset", "WebLoader", "StatefulDataLoader", "StreamingDataset"), STREAM),
)


def calls(script: Script) -> Iterator[Advice]:
    yield from advise_calls(script, CALLS)


def loaders(script: Script) -> Iterator[Advice]:
    iterable = {dataset.name for dataset in _iterable_datasets(script)}
    evaluating = {node for place in evaluation_loops.places(script) for node in ast.walk(place)}
    for call in script.called("DataLoader"):
        if call in evaluating:
            continue  # advised on as a whole
        yield from _loader(script, call, iterable)


def _loader(script: Script, call: ast.Call, iterable: set[str]) -> Iterator[Advice]:
    name = script.assigned_to(call) or "loader"
    dataset = argument(call, "dataset", 0)
    made_from = script.name_of(dataset.func) if isinstance(dataset, ast.Call) else script.origin_of(dataset)
    if made_from in iterable:
        yield script.advice(call, STREAM)
    elif is_constant(size := argument(call, "batch_size", 1), None):
        yield script.advice(
            call,
            "a loader with batch_size=None yields whole batches, which can't be split over virtual nodes: give it a "
            "batch_size, or write `def batch_fn(size): ...` for `trainer.steps(n, batch_fn)`.",
        )
    else:
        batch = script.text(size) if size is not None else "the loader's"
        yield script.advice(
            call,
            f"works as it is, in `trainer.batches({name})`: its batch is the global one, so the Trainer gets "
            f"batch_size={batch}, too. A loader that only evaluates goes into `trainer.evaluate({name}, metric_fn)`, "
            "with shuffle=False.",
            Severity.CHECK,
        )
    if (init := argument(call, "worker_init_fn", 9)) is not None and not is_constant(init, None):
        yield script.advice(
            init, "delete worker_init_fn=: every example is loaded under a seed of its own, in whichever process."
        )


def _iterable_datasets(script: Script) -> Iterator[ast.ClassDef]:
    for node in script.nodes(ast.ClassDef):
        if any(is_named(script.name_of(base), "IterableDataset") for base in node.bases):
            yield node


def streams(script: Script) -> Iterator[Advice]:
    for node in _iterable_datasets(script):
        yield script.advice(node, STREAM)
    for call in script.called("load_dataset", "datasets.load_dataset"):
        if is_constant(argument(call, "streaming"), True):
            yield script.advice(call, STREAM)


def endless(script: Script) -> Iterator[Advice]:
    """Loaders that are begun again whenever they end."""
    for call in script.called("cycle", "itertools.cycle"):
        over = script.text(call.args[0]) if call.args else ""
        if re.search(r"load|data|batch|train", over.lower()):
            yield script.advice(call, f"`for batch in trainer.steps(n, {over})` begins again by itself, for n steps.")


RULES = (calls, loaders, streams, endless)
