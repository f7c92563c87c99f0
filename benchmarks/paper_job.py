"""One training run of the accuracy tables, on Fashion-MNIST: prints its result as a line of JSON.

Under ``vf run`` or alone it uses VirtualFlow. With ``--plain`` it is ordinary PyTorch, data-parallel where torchrun
started it: then ``--batch-size`` is what all devices hold together.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import virtualflow as vf
from benchmarks import fashion

TEST_EXAMPLES = 4000


def main() -> None:
    given = options()
    train_set, test_set = fashion.train_set(given.examples), fashion.test_set(TEST_EXAMPLES)
    if given.memory_limit:
        rehearse(given, train_set)
        limit_memory(given.memory_limit)
    try:
        result = (plain if given.plain else virtual)(given, train_set, test_set)
    except (RuntimeError, MemoryError, vf.VirtualFlowError) as error:
        # oneDNN does not say why it could not create what it needs.
        if not (isinstance(error, MemoryError) or re.search("allocate memory|out of memory|create a", str(error))):
            raise
        result = {"out_of_memory": True}
    if result:
        print(json.dumps(result))


def virtual(given: argparse.Namespace, train_set: TensorDataset, test_set: TensorDataset) -> dict[str, object]:
    vf.seed(given.seed)
    model, optimizer, schedule = _made(given)
    trainer = vf.Trainer(
        model,
        optimizer,
        fashion.loss,
        batch_size=given.batch_size,
        virtual_nodes=given.virtual_nodes,
        state=[schedule],
        drop_last=True,
    )
    reports = trainer.fit(train_set, given.epochs, schedule=schedule)
    accuracy = trainer.evaluate(test_set, fashion.right_answers)
    digest = trainer.digest()
    losses = [report.loss for report in reports]
    return {"accuracy": accuracy, "digest": digest, "losses": losses} if trainer.is_lead else {}


def plain(given: argparse.Namespace, train_set: TensorDataset, test_set: TensorDataset) -> dict[str, object]:
    torch.set_num_threads(1)
    torch.manual_seed(given.seed)
    devices = int(os.environ.get("WORLD_SIZE", "1"))
    model, optimizer, schedule = _made(given)
    replica, sampler = model, None
    if devices > 1:
        torch.distributed.init_process_group("gloo")
        replica = nn.parallel.DistributedDataParallel(model)
        sampler = DistributedSampler(train_set, seed=given.seed)
    loader = DataLoader(train_set, given.batch_size // devices, sampler is None, sampler, drop_last=True)
    losses = []
    for epoch in range(given.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for batch in loader:
            loss = fashion.loss(replica, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        schedule.step()
    return {"accuracy": _accuracy(model, test_set), "losses": losses} if os.environ.get("RANK", "0") == "0" else {}


def _made(
    given: argparse.Namespace,
) -> tuple[nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    model = fashion.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=given.lr, momentum=0.9, weight_decay=5e-4)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=given.epochs)


def _accuracy(model: nn.Module, test_set: TensorDataset) -> float:
    model.eval()
    with torch.no_grad():
        pairs = [fashion.right_answers(model, batch) for batch in DataLoader(test_set, 16)]
    return float(sum(right for right, _ in pairs)) / len(test_set)


def rehearse(given: argparse.Namespace, train_set: TensorDataset) -> None:
    """Train another model on two examples: loads all code, so that the limit is about tensors."""
    torch.set_num_threads(1)
    model, optimizer, _ = _made(given)
    fashion.loss(model, list(train_set[:2])).backward()
    optimizer.step()


def limit_memory(megabytes: int) -> None:
    """Let this process take *megabytes* beyond what it has now; the system refuses what exceeds it."""
    status = Path("/proc/self/status").read_text()
    match = re.search(r"^VmData:\s+(\d+) kB", status, re.MULTILINE)
    assert match is not None
    limit = int(match[1]) * 1024 + megabytes * 10**6
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--virtual-nodes", type=int, default=1)
    parser.add_argument("--lr", type=float, default=0.4)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--examples", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory-limit", type=int, metavar="MB")
    return parser.parse_args()


if __name__ == "__main__":
    main()
