"""The same training under torchrun: DDP, a checkpoint every 10 steps, a line with the time of each step."""

import os
import sys
import time
from pathlib import Path

import torch
from torch import distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from benchmarks.elastic_job import build, data

if __name__ == "__main__":
    width, folder = int(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(build(width))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    inputs, labels = data().tensors
    step, checkpoint = 0, folder / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        step = saved["step"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    (folder / f"pid-{rank}").write_text(str(os.getpid()))
    while not (folder / "enough").exists():
        start = (step * 64) % 4096
        mine = slice(start + rank * 64 // size, start + (rank + 1) * 64 // size)
        optimizer.zero_grad()
        cross_entropy(model(inputs[mine]), labels[mine]).backward()
        optimizer.step()
        step += 1
        if rank == 0:
            with (folder / "steps").open("a") as file:
                file.write(f"{time.time()} {step} {os.getpid()}\n")
            if step % 10 == 0:
                state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, folder / "partial")
                os.replace(folder / "partial", checkpoint)
