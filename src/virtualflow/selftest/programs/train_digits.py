"""A job of ``vf selftest``: trains one network as any user's script would."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import virtualflow as vf
from virtualflow.selftest.programs.drawn_digits import drawn_digits
from virtualflow.selftest.programs.networks import NETWORKS

NODE_SIZE = 8
WIDTH = 32


def main() -> None:
    """Train, and print as JSON what came out."""
    given = _options()
    vf.seed(0)
    model = NETWORKS[given.network](WIDTH)
    trainer = vf.Trainer(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-2),
        loss_fn,
        batch_size=NODE_SIZE * given.virtual_nodes,
        virtual_nodes=given.virtual_nodes,
        reduction=given.reduction,
        clip_grad_norm=1.0,
    )
    train, test = drawn_digits(given.examples, seed=1), drawn_digits(256, seed=2)
    for _ in trainer.epochs(given.epochs):
        for batch in trainer.batches(train):
            trainer.step(batch)
            _wait(given.hold, trainer.global_step)
    accuracy = trainer.evaluate(test, right_answers)
    digest = trainer.digest()
    if trainer.is_lead:
        print(json.dumps({"accuracy": accuracy, "digest": digest}), flush=True)


def loss_fn(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1])


def right_answers(model: nn.Module, batch: list[Tensor]) -> tuple[Tensor, int]:
    return (model(batch[0]).argmax(1) == batch[1]).sum(), len(batch[1])


def _wait(hold: Path, step: int) -> None:
    """Slow down more and more as long as *hold* exists, so that a trial has time to resize or kill this job."""
    if hold.exists():
        time.sleep(min(1.0, 0.02 * 1.3**step))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--virtual-nodes", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--examples", type=int, required=True)
    parser.add_argument("--reduction", default="exact")
    parser.add_argument("--hold", type=Path, required=True)
    return parser.parse_args()
