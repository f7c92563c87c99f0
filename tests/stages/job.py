"""A job whose model is cut into stages: what the tests run on different grids of cells."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

import virtualflow as vf
from tests.stages.models import METRICS, MODELS, examples
from virtualflow.testing import kill_at
from virtualflow.train import solo

CASE = {
    "model": "gpt",
    "examples": 20,
    "batch_size": 8,
    "virtual_nodes": 4,
    "epochs": 2,
    "copies": 1,
    "pipeline": "1f1b",
    "recompute": False,
    "evaluate": False,
    "stop_at": None,
    "save": None,
    "load": None,
    "export": None,
    "faults": [],
    "folder": None,
    "hold": None,
    "spared": 1,
    "capacity": None,  # bytes of a CUDA device's memory
    "loss_scale": None,
}


def warmup(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 6) * 0.97**step)


def scaler_from(scale: float | None) -> torch.amp.GradScaler | None:
    """A GradScaler whose first scales are too large, if *scale* is."""
    if scale is None:
        return None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.amp.GradScaler(device, init_scale=scale, growth_interval=3, backoff_factor=2.0**-10)


def arm_faults(case: dict[str, Any]) -> None:
    """Have this worker killed at the point that is meant for its device, once in the job."""
    member = solo.installed()
    for number, (device, point, hit) in enumerate(case["faults"]):
        marker = Path(case["folder"]) / f"struck-{number}"
        if member is not None and member.device == device and not marker.exists():
            kill_at(point, hit, marker, spared=lambda: len(member.devices) <= case["spared"])
            break


def main() -> None:
    case = CASE | json.loads(sys.argv[1])
    arm_faults(case)
    if case["capacity"]:
        from tests.fakecuda import install

        install.set_capacity(torch.cuda.current_device(), case["capacity"])
    progress = vf.State(best=float("inf"), bad=0)
    trainer = vf.Trainer(
        **MODELS[case["model"]](),
        batch_size=case["batch_size"],
        virtual_nodes=case["virtual_nodes"],
        copies=case["copies"],
        pipeline=case["pipeline"],
        recompute=case["recompute"],
        seed=3,
        state=[progress, warmup],
        grad_scaler=scaler_from(case["loss_scale"]),
    )
    data = examples(case["model"], case["examples"])
    if case["load"]:
        trainer.load(case["load"])
    schedule = trainer.state[1]
    for _ in trainer.epochs(case["epochs"]):
        if progress.bad > 1:  # a schedule of the script's own, by hand
            trainer.optimizer.param_groups[0]["weight_decay"] *= 0.5
        for batch in trainer.batches(data):
            loss = float(trainer.step(batch))
            schedule.step()
            progress.bad += loss > progress.best
            progress.best = min(loss, progress.best)
            if case["hold"] and Path(case["hold"]).exists():
                time.sleep(min(1.0, 0.02 * 1.3**trainer.global_step))  # until all that was planned has happened
            if trainer.global_step == case["stop_at"]:
                trainer.save(case["save"])
                digest = trainer.digest()
                if trainer.is_lead:
                    print(digest)
                return
        if case["evaluate"]:
            value = trainer.evaluate(data, METRICS[case["model"]])
            rows = trainer.predict(data)
            sums = trainer.map(data, lambda output, batch: [float(output.double().sum()), len(batch)])
            if trainer.is_lead:
                print(value.hex(), float(rows.double().sum()).hex(), sums)
    if case["export"]:
        trainer.export(Path(case["export"]))
    digest = trainer.digest()
    if trainer.is_lead:
        print(progress, schedule.get_last_lr(), digest)


main()
