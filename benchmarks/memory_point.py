"""One measurement of memory, in a process of its own: prints JSON.

Usage: python -m benchmarks.memory_point {plain,fast,exact} SETTING VIRTUAL_NODES STEPS {peak,changes,resident}
"""

from __future__ import annotations

import dataclasses
import gc
import json
import re
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.contender import Task, loop
from benchmarks.ledger import Ledger
from benchmarks.settings import SETTINGS, Batch, Setting
from virtualflow.train.accumulate import Accumulator


def watched(setting: Setting, ledger: Ledger) -> Setting:
    """*setting*, with a model, optimizer and loss that tell the ledger what their memory is."""
    dataset = setting.dataset()  # made before anything is counted

    def model() -> nn.Module:
        made = setting.model()
        ledger.tag("parameters", [*made.parameters(), *made.buffers()])
        for parameter in made.parameters():
            # Registered before the Trainer's own hook, which may free the gradient.
            parameter.register_post_accumulate_grad_hook(lambda owner: ledger.tag("gradients", [owner.grad]))
        return made

    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        made = setting.optimizer(model)

        def told(optimizer: torch.optim.Optimizer, *_: object) -> None:
            states = [value for state in optimizer.state.values() for value in state.values()]
            ledger.tag("optimizer", [value for value in states if isinstance(value, Tensor)])
            sums = [item.sums for item in gc.get_objects() if isinstance(item, Accumulator)]
            ledger.tag("accumulator", sums)

        made.register_step_post_hook(told)
        return made

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        ledger.tag("inputs", batch)
        return setting.loss(model, batch)

    return dataclasses.replace(setting, model=model, optimizer=optimizer, dataset=lambda: dataset, loss=loss)


def live(kind: str, setting: Setting, virtual_nodes: int, steps: int) -> Ledger:
    """The allocations of the first *steps* steps, the model's own included."""
    ledger = Ledger()
    task = Task(watched(setting, ledger), virtual_nodes, 1)
    with ledger:
        iterator = loop(kind, task)
        for _ in range(steps):
            next(iterator)
    return ledger


def resident(kind: str, setting: Setting, virtual_nodes: int, steps: int) -> int:
    """How much the process's peak of resident memory grows by *steps* steps, as the system counts it."""
    dataset = setting.dataset()
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    task = Task(dataclasses.replace(setting, dataset=lambda: dataset), virtual_nodes, 1)
    iterator = loop(kind, task)
    for _ in range(steps):
        next(iterator)
    return _status("VmHWM") - before


def _status(field: str) -> int:
    match = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert match is not None
    return int(match[1]) * 1024


def main() -> None:
    kind, name, virtual_nodes, steps, what = sys.argv[1:]
    arguments = (kind, SETTINGS[name], int(virtual_nodes), int(steps))
    if what == "resident":
        print(json.dumps({"bytes": resident(*arguments)}))
        return
    ledger = live(*arguments)
    result: dict[str, object] = {"bytes": ledger.peak()}
    if what == "changes":
        result["changes"] = [dataclasses.astuple(change) for change in ledger.changes]
    print(json.dumps(result))


if __name__ == "__main__":
    main()
