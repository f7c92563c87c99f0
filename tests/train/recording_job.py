"""A job whose dataset writes down which examples each worker loads."""

import json
import os
import sys
from pathlib import Path

from torch import nn, optim
from torch.nn.functional import mse_loss

import virtualflow as vf
from tests.train.small import regression
from virtualflow.testing import RecordingDataset

options = json.loads(sys.argv[1])
vf.seed(0)
model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
trainer = vf.Trainer(
    model,
    optim.SGD(model.parameters(), lr=0.1),
    lambda model, batch: mse_loss(model(batch[0]), batch[1]),
    batch_size=8,
    virtual_nodes=4,
    loader_workers=options["loader_workers"],
)
data = RecordingDataset(regression(36), Path(options["folder"]) / str(os.getpid()))
for _ in trainer.epochs(2):
    for batch in trainer.batches(data):
        trainer.step(batch)
