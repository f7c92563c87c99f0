"""What ``benchmarks.sharding`` runs on some devices: prints JSON.

Usage: sharding_job.py {time,none,state} SETTING STEPS. With *time*, two Trainers take turns, step by step, and must end
with the same bits; else each worker writes down the peak of its live tensors in so many steps.
"""

from __future__ import annotations

import json
import sys
import time

import virtualflow as vf
from benchmarks.ledger import Ledger
from benchmarks.settings import SETTINGS, VIRTUAL_NODES
from virtualflow.train import solo

what, name, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
setting = SETTINGS[name]
dataset = setting.dataset()


def trainer(sharding: str) -> vf.Trainer:
    vf.seed(0)
    model = setting.model()
    return vf.Trainer(
        model,
        setting.optimizer(model),
        setting.loss,
        batch_size=VIRTUAL_NODES * setting.node_size,
        virtual_nodes=VIRTUAL_NODES,
        sharding=sharding,
        loader_workers=0,
    )


if what == "time":
    sides = {sharding: trainer(sharding) for sharding in ("none", "state")}
    loops = {sharding: side.steps(steps, dataset) for sharding, side in sides.items()}
    seconds: dict[str, list[float]] = {sharding: [] for sharding in sides}
    processor: dict[str, list[float]] = {sharding: [] for sharding in sides}
    for step in range(steps):
        for sharding in ("none", "state") if step % 2 else ("state", "none"):
            batch = next(loops[sharding])
            started, used = time.perf_counter(), time.process_time()
            sides[sharding].step(batch)
            seconds[sharding].append(time.perf_counter() - started)
            processor[sharding].append(time.process_time() - used)
    if len({side.digest() for side in sides.values()}) > 1:
        sys.exit("the sharded job has other bits: its times mean nothing")
    workers = sides["none"].gather(processor)
    measured = {
        "seconds": seconds,
        "processor": {
            side: [sum(of_step) for of_step in zip(*(w[side] for w in workers), strict=True)] for side in sides
        },
    }
    if sides["none"].is_lead:  # the first steps are replayed
        print(json.dumps({kind: {side: taken[2:] for side, taken in of.items()} for kind, of in measured.items()}))
else:
    with Ledger() as ledger:
        one = trainer(what)
        for batch in one.steps(steps, dataset):
            one.step(batch)
            if one.global_step == steps:
                break
    peaks = one.gather(ledger.peak())
    if solo.leads():
        print(json.dumps(peaks))
