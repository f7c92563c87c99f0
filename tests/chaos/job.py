"""The job of the chaos tests: dropout, batch norm, a short last batch, momentum, a scheduler stepped by the script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import virtualflow as vf
from virtualflow.core import blocks
from virtualflow.testing import RecordingDataset, kill_at
from virtualflow.train import solo

options = {
    "epochs": 4,
    "faults": [],
    "folder": None,
    "evaluate": True,
    "save": None,
    "hold": None,
    "reduction": "exact",
    "frozen_epochs": [],  # in which the first layer is not trained
    "loader_workers": 0,  # in the training thread: what is fetched ahead may be loaded again after a change
    "spared": 1,  # workers that no fault strikes: somebody must hold the state
    "sharding": "none",
    "copies": 2,
    "wide": False,  # with layers of several blocks, where the state is cut
    "daemons": False,  # leave a process behind in each tenth epoch
} | json.loads(sys.argv[1])
member = solo.installed()
for number, (device, point, hit) in enumerate(options["faults"]):
    if member is not None and member.device == device:
        marker = Path(options["folder"]) / f"struck-{number}"
        if not marker.exists():  # each fault strikes once: the worker that takes this one's place is spared
            kill_at(point, hit, marker, spared=lambda: len(member.devices) <= options["spared"])
            break

vf.seed(1)
generator = torch.Generator().manual_seed(2)
data = torch.utils.data.TensorDataset(
    torch.randn(90, 1, 6, 6, generator=generator), torch.randint(0, 5, (90,), generator=generator)
)
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(64, 5))
if options["wide"]:
    blocks.BLOCK_ELEMENTS = 4096
    model[-1] = nn.Sequential(nn.Linear(64, 150), nn.Tanh(), nn.Linear(150, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)


def loss_fn(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1])


def accuracy(model: nn.Module, batch: list[Tensor]) -> tuple[Tensor, int]:
    return (model(batch[0]).argmax(1) == batch[1]).sum(), len(batch[1])


trainer = vf.Trainer(
    model,
    optimizer,
    loss_fn,
    batch_size=16,
    virtual_nodes=8,
    state=[schedule],
    reduction=options["reduction"],
    sharding=options["sharding"],
    copies=options["copies"],
    loader_workers=options["loader_workers"],
)
before = trainer.evaluate(data, accuracy)
recorded = RecordingDataset(data, Path(options["folder"]) / f"ids-{os.getpid()}") if options["folder"] else data
for epoch in trainer.epochs(options["epochs"]):
    model[0].requires_grad_(epoch not in options["frozen_epochs"])
    if options["daemons"] and epoch % 10 == 0:
        left = subprocess.Popen(["sleep", "600"], start_new_session=True)
        (Path(options["folder"]) / f"daemon-{left.pid}").touch()
    for batch in trainer.batches(recorded):
        trainer.step(batch)
        if options["hold"] and Path(options["hold"]).exists():
            time.sleep(min(1.0, 0.02 * 1.3**trainer.global_step))  # slower, until all that was planned has happened
    schedule.step()
    if options["evaluate"]:
        trainer.evaluate(data, accuracy)
    if options["save"]:
        trainer.save(options["save"])
digest = trainer.digest()
if trainer.is_lead:
    print(before.hex(), digest)
