"""Seeds, devices, threads and compilation."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from virtualflow.porting.advice import Advice, Severity
from virtualflow.porting.call_rules import CallRule, advise_calls
from virtualflow.porting.script import Script, argument, is_constant, is_named

SEEDS = (
    "torch.manual_seed",
    "random.seed",
    "torch.cuda.manual_seed",
    "torch.cuda.manual_seed_all",
    "set_seed",
    "seed_everything",
)
OWN_DEVICE = (
    'a worker\'s device is just "cuda", without a number: the number would be the same on all of them. Or delete it: '
    "under `vf run` the model and each batch are on the worker's device."
)
ANY_DEVICE = (
    "not needed under `vf run`: the model and each batch are on the worker's device. It does no harm, either, as long "
    "as it names no number of a device; in loss_fn, new tensors go to `x.device`."
)
NUMBERED = re.compile(r"cuda:|rank|gpu_id|device_id|\bgpu\b|\d")
CALLS = (
    CallRule(
        ("set_num_threads", "set_num_interop_threads"),
        "delete it: bits depend on the threads, so `vf.seed(..., threads_per_device=...)` and `vf run "
        "--threads-per-device` fix them.",
    ),
    CallRule(("use_deterministic_algorithms",), 'delete it: the Trainer sets it, unless reduction="fast".'),
)


def settings(script: Script) -> Iterator[Advice]:
    yield from advise_calls(script, CALLS)
    for node in script.nodes(ast.Assign):
        if any(is_named(script.name_of(target), "cudnn.benchmark", "cudnn.deterministic") for target in node.targets):
            yield script.advice(node, 'delete it: the Trainer sets it, unless reduction="fast".')


def seeds(script: Script) -> Iterator[Advice]:
    for call in script.called(*SEEDS):
        if script.name_of(call.func) != "virtualflow.seed":
            seed = script.text(call.args[0]) if call.args else "0"
            yield script.advice(
                call,
                f"`vf.seed({seed})`, once, before the model is built: it seeds torch, numpy and random, and must not "
                "depend on the rank.",
            )


def no_seed(script: Script) -> Iterator[Advice]:
    """A script that trains, and is seeded nowhere."""
    if any(script.called(*SEEDS, "virtualflow.seed")):
        return
    trains = [*script.called("backward", "fit", "train")]
    first = next((node for node in (*script.nodes(ast.Import), *script.nodes(ast.ImportFrom))), None)
    uses = script.imports("torch", "transformers", "lightning", "pytorch_lightning")
    if trains and uses and first is not None:
        yield script.advice(
            first,
            "add `vf.seed(0)` after the imports, before the model is built: without a seed every run draws other "
            "weights, and there is nothing to compare.",
        )


def devices(script: Script) -> Iterator[Advice]:
    for call in script.called("cuda", "to", "torch.device", "to_device"):
        is_to = is_named(script.name_of(call.func), "to", "to_device")
        given = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "device")]
        text = " ".join(script.text(expression) for expression in given)
        if is_to and not re.search(r"device|cuda|gpu|rank|'cpu'", text):
            continue  # a dtype
        numbered = NUMBERED.search(text)
        yield script.advice(
            call, OWN_DEVICE if numbered else ANY_DEVICE, Severity.CHANGE if numbered else Severity.CHECK
        )


def numbered(script: Script) -> Iterator[Advice]:
    """``device = f"cuda:{rank}"``"""
    for node in script.nodes(ast.Constant):
        parent = next(script.around(node), None)
        is_name = isinstance(node.value, str) and node.value.startswith("cuda:")
        if is_name and isinstance(parent, ast.JoinedStr | ast.Assign | ast.IfExp):
            yield script.advice(node, OWN_DEVICE)


def compiled(script: Script) -> Iterator[Advice]:
    for call in script.called("torch.compile"):
        if is_constant(argument(call, "dynamic"), True):
            yield script.advice(
                call, "`torch.compile(..., dynamic=False)`: with dynamic shapes the bits depend on the shapes before."
            )
        else:
            yield script.advice(
                call,
                "works as it is, before the Trainer is made: each size of virtual node is compiled once.",
                Severity.CHECK,
            )


RULES = (settings, seeds, no_seed, devices, numbered, compiled)
