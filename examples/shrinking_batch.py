"""The digits of digits_resnet.py in plain PyTorch, without virtual nodes: what a device can't hold is not trained on.

    python examples/shrinking_batch.py --devices 1 3      # on 1 device, then on 3

Each device takes as many examples as it can hold, so the global batch follows the number of devices, while the
learning rate stays as it was tuned: the baseline of the paper (TF* there), and the second half of `make demo`.
"""

import argparse
import json
import random
import tempfile
from pathlib import Path

import torch
import torch._dynamo  # which every optimizer imports: once here, not again on each device
import torch.distributed as dist
from torch import nn
from torch.multiprocessing import start_processes
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from digits_resnet import Digits, ResNet, loss_fn, right_answers


def main() -> None:
    given = options()
    torch.set_num_threads(1)  # a device is one core, as under `vf run`
    for devices in given.devices:
        print(f"devices: {devices}, batch {devices * given.device_batch}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            # Forked, so that all this is imported once.
            start_processes(drive, (devices, given, f"{folder}/meet"), nprocs=devices, start_method="fork")


def drive(rank: int, devices: int, given: argparse.Namespace, meeting_point: str) -> None:
    """What each device does."""
    dist.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=devices)
    torch.manual_seed(given.seed)
    model = ResNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=given.lr, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=given.epochs)
    random.seed(given.seed + rank)  # for the shifts: another stream on each device
    report = train(DistributedDataParallel(model), optimizer, schedule, given)
    if given.out and rank == 0:
        (given.out / f"plain-{devices}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    given: argparse.Namespace,
) -> dict[str, list[float]]:
    """The usual loop. Returns the loss of every step and the accuracy after every epoch."""
    train_set = Digits(train=True)
    sampler = DistributedSampler(train_set, seed=given.seed)
    loader = DataLoader(train_set, given.device_batch, sampler=sampler)
    losses, accuracies = [], []
    for epoch in range(given.epochs):
        sampler.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            loss = loss_fn(model, batch)
            loss.backward()
            optimizer.step()
            losses.append(mean_over_devices(loss.detach()))
        schedule.step()
        accuracies.append(accuracy(model))
        if dist.get_rank() == 0:
            mean = sum(losses[-len(loader) :]) / len(loader)
            print(f"epoch {epoch + 1:2}  loss {mean:.4f}  accuracy {accuracies[-1]:.1%}", flush=True)
    return {"losses": losses, "accuracies": accuracies}


def mean_over_devices(loss: torch.Tensor) -> float:
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size()


def accuracy(model: DistributedDataParallel) -> float:
    model.eval()
    with torch.no_grad():
        # The model inside, because every device evaluates all of it.
        pairs = [right_answers(model.module, batch) for batch in DataLoader(Digits(train=False), batch_size=120)]
    model.train()
    return float(sum(right for right, _ in pairs)) / sum(count for _, count in pairs)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Plain PyTorch, with a batch that follows the number of devices.")
    parser.add_argument("--devices", type=int, nargs="+", default=[1], metavar="N")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--device-batch", type=int, default=8, help="what a device can hold (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=0.4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write losses and accuracies here, as plain-N.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
