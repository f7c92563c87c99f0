"""The same training under torchft: every process is a replica group of its own, a line with the time of each step."""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed as dist
from torch.nn.functional import cross_entropy
from torchft import Manager, Optimizer, ProcessGroupGloo

from benchmarks.elastic_job import build, data

if __name__ == "__main__":
    width, folder, lighthouse, replica = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = build(width)
    momentum = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load_state_dict=lambda state: (network.load_state_dict(state["model"]), momentum.load_state_dict(state["sgd"])),
        state_dict=lambda: {"model": network.state_dict(), "sgd": momentum.state_dict()},
        min_replica_size=1,
        replica_id=f"replica-{replica}",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=lighthouse,
        hostname="127.0.0.1",
    )
    optimizer = Optimizer(manager, momentum)
    inputs, labels = data().tensors
    (folder / f"pid-{replica}").write_text(str(os.getpid()))
    while not (folder / "enough").exists():
        start = (manager.current_step() * 64) % 4096
        optimizer.zero_grad()
        # Its batch changes with the number of replicas, as torchft's users have it: 64 over 3, whatever is left.
        mine = slice(start + int(replica) % 3 * 21, start + int(replica) % 3 * 21 + 21)
        cross_entropy(network(inputs[mine]), labels[mine]).backward()
        # By hand: its DistributedDataParallel fails with an assertion when a peer dies (torchft 0.2.0, torch 2.13).
        for work in [manager.allreduce(parameter.grad) for parameter in network.parameters()]:
            work.wait()
        optimizer.step()
        if replica == "0":
            with (folder / "steps").open("a") as file:
                file.write(f"{time.time()} {manager.current_step()} {manager.num_participants()}\n")
    manager.shutdown(wait=False)
