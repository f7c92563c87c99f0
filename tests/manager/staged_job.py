"""A job whose model is cut into four stages, each on two devices; a file in its folder slows it down."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import virtualflow as vf
from tests.stages.models import MODELS, examples

folder = Path(sys.argv[1])
trainer = vf.Trainer(**MODELS["gpt"](), batch_size=8, virtual_nodes=4, copies=2, seed=3)
data = examples("gpt", 16)
for _ in trainer.epochs(20):
    for batch in trainer.batches(data):
        trainer.step(batch)
        if (folder / "slow").exists():
            time.sleep(0.05 * 1.3**trainer.global_step)  # ever slower: a busy machine must not miss its end
digest = trainer.digest()
if trainer.is_lead:
    print(digest)
