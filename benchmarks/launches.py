"""What a step asks of an accelerator: launches, waits of the host, bytes copied, touched and reduced; and a plain loop.

Counted on the CUDA device of the tests, since counts need no GPU. Times do, and there are none here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Any

from tests import fakecuda

from benchmarks.report import Section
from benchmarks.settings import SETTINGS, VIRTUAL_NODES, Setting

WARM_UP_STEPS = 4
CONTENDERS = ("plain", "fast", "fast, Triton", "exact", "exact, Triton")


def run(quick: bool) -> None:
    report, rows = Section("launches", quick=quick), []
    for name in SETTINGS:
        for contender in CONTENDERS:
            environment = os.environ | fakecuda.environment(1)
            command = [sys.executable, "-m", "benchmarks.launches", name, contender]
            printed = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
            counts = json.loads(printed.splitlines()[-1])
            if contender.endswith("Triton"):  # the same sums, made otherwise
                counts["bytes_reduced"] = rows[-1]["bytes_reduced"]
            rows.append({"setting": name, "contender": contender, **counts})
    report.show("one step on the CUDA device of the tests", list(rows[0]), [list(row.values()) for row in rows])
    report.save({"virtual_nodes": VIRTUAL_NODES, "rows": rows})


def plain(setting: Setting) -> Iterator[None]:
    """Gradient accumulation as one writes it by hand, with the loss of each step."""
    import torch

    torch.manual_seed(0)
    model = setting.model().to("cuda")
    optimizer, dataset = setting.optimizer(model), setting.dataset()
    numbers = count()
    while True:
        total = torch.zeros((), device="cuda")
        for _ in range(VIRTUAL_NODES):
            examples = [dataset[next(numbers)] for _ in range(setting.node_size)]
            batch = [
                torch.stack(column).pin_memory().to("cuda", non_blocking=True) for column in zip(*examples, strict=True)
            ]
            loss = setting.loss(model, batch) / VIRTUAL_NODES
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        total.item()
        yield


def virtualflow(setting: Setting, reduction: str) -> Iterator[None]:
    """The same as a VirtualFlow script."""
    import virtualflow as vf

    vf.seed(0)
    model = setting.model().to("cuda")
    trainer = vf.Trainer(
        model,
        setting.optimizer(model),
        setting.loss,
        batch_size=VIRTUAL_NODES * setting.node_size,
        virtual_nodes=VIRTUAL_NODES,
        reduction=reduction,
        loader_workers=0,
    )
    for _ in trainer.epochs(1):
        for batch in trainer.batches(setting.dataset()):
            trainer.step(batch)
            yield


def counted(setting: Setting, contender: str) -> dict[str, Any]:
    """The counts of one step, after some."""
    from tests.fakecuda import install as fake

    steps = plain(setting) if contender == "plain" else virtualflow(setting, contender.partition(",")[0])
    hidden = _as_if_by_triton() if contender.endswith("Triton") else None
    for _ in range(WARM_UP_STEPS):
        next(steps)
    if hidden is not None:
        hidden.clear()
    with fake.counting() as counts:
        next(steps)
    return {
        "launches": counts["launches"] - (hidden or {}).get("launches", 0),
        "waits": counts["implicit_syncs"] + counts["explicit_syncs"],
        "copies": counts["to_device"] + counts["to_host"],
        "bytes_to_device": counts["bytes_to_device"],
        "bytes_to_host": counts["bytes_to_host"],
        "bytes_touched": counts["bytes"] - (hidden or {}).get("bytes", 0),
        "bytes_reduced": None if hidden is not None else _reduced(setting, contender),
    }


def _reduced(setting: Setting, contender: str) -> dict[str, int]:
    """The bytes that one of two workers gives to collectives in a step: between devices, and between hosts.

    A plain loop's are its gradients, once, as DistributedDataParallel reduces them.
    """
    if contender == "plain":
        gradients = sum(parameter.numel() * parameter.element_size() for parameter in setting.model().parameters())
        return {"cuda": gradients, "cpu": 0}
    from tests.fakecuda.silent_group import one_of_two

    from virtualflow.train import solo

    solo._solo = membership = one_of_two()
    steps = virtualflow(setting, contender.partition(",")[0])
    for _ in range(WARM_UP_STEPS):
        next(steps)
    before = dict(membership.group.bytes_of)
    next(steps)
    return {kind: count - before[kind] for kind, count in membership.group.bytes_of.items()}


def _as_if_by_triton() -> Counter[str]:
    """Count each batch of gradients as Triton's one launch, and the copy of its table; return what has to be left out.

    Triton can't build kernels here, and its interpreter takes minutes for a step: torch's operations stand in for it.
    """
    import torch
    from tests.fakecuda import install as fake

    from virtualflow.train import batched_sums, triton_sums

    hidden: Counter[str] = Counter()

    def launch(self: Any, batch: Any, dtype: Any) -> None:
        triton_sums._sent(torch.zeros(4, len(batch), dtype=torch.int64), self.sums.device)
        self._placed(batch)
        with fake.counting() as counts:
            batched_sums.BatchedAccumulator._add_batch(self, batch)
        touched = sum(addend.value.nbytes + (8 if addend.first else 16) * len(addend.value) for addend in batch)
        hidden.update({"launches": counts["launches"] - 1, "bytes": counts["bytes"] - touched})

    triton_sums.TritonAccumulator._launch = launch  # type: ignore[method-assign]
    triton_sums.works_on = lambda device: True  # type: ignore[assignment]
    return hidden


if __name__ == "__main__":
    print(json.dumps(counted(SETTINGS[sys.argv[1]], sys.argv[2])))
