"""What the CUDA device for tests does as a GPU does. Runs in a process that has it: see ``test_fakecuda``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests import fakecuda
from tests.fakecuda import install as fake

CHECKS = Path(__file__)


@pytest.fixture(autouse=True)
def as_new() -> Iterator[None]:
    yield
    fake.pace()
    fake.set_capacity(0, 2**62)
    torch.cuda.set_sync_debug_mode(0)


def test_tensors_of_two_devices_do_not_mix() -> None:
    here, there = torch.ones(3), torch.ones(3, device="cuda:0")
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        here + there
    with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cuda:1"):
        there + torch.ones(3, device="cuda:1")
    assert (there + torch.tensor(1.0)).tolist() == [2.0, 2.0, 2.0]  # a number goes with the launch
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        there.numpy()


def test_a_non_blocking_copy_to_the_host_is_garbage_until_a_sync() -> None:
    result = torch.arange(4.0, device="cuda")
    host = torch.empty(4, pin_memory=True)
    host.copy_(result, non_blocking=True)
    assert host.tolist() != [0.0, 1.0, 2.0, 3.0]
    torch.cuda.current_stream().synchronize()
    assert host.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert torch.arange(4.0, device="cuda").cpu().tolist() == [0.0, 1.0, 2.0, 3.0]  # one that blocks


def test_memory_is_counted_and_runs_out() -> None:
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    held = torch.empty(1000, device="cuda")
    assert torch.cuda.memory_allocated() - before == 4000
    fake.set_capacity(0, torch.cuda.memory_allocated() + 100)
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        held + 1
    del held
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() - before == 4000


def test_new_memory_holds_garbage() -> None:
    assert not torch.equal(torch.empty(64, device="cuda").cpu(), torch.zeros(64))


def test_launches_and_syncs_are_counted_and_syncs_can_be_forbidden() -> None:
    tensor = torch.ones(8, device="cuda")
    with fake.counting() as found, fake.launched() as names:
        total = (tensor * 2).sum()
    assert (found["launches"], found["implicit_syncs"]) == (2, 0)
    assert [name.partition(".")[0] for name in names] == ["aten::mul", "aten::sum"]
    with fake.counting() as found:
        assert total.item() == 16.0
    assert found["implicit_syncs"] == 1
    torch.cuda.set_sync_debug_mode("error")
    for sync in (total.item, tensor.nonzero, tensor.cpu, lambda: bool((tensor > 0).all())):
        with pytest.raises(RuntimeError, match="synchronizing CUDA operation"):
            sync()


def test_a_fork_of_a_process_that_uses_it_must_not() -> None:
    torch.cuda.init()
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writer, b"bad" if torch.cuda._is_in_bad_fork() else b"fine")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 10) == b"bad"


def test_events_measure_the_device_and_not_the_host() -> None:
    fake.pace(kernel_microseconds=200_000)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    tensor = torch.ones(8, device="cuda")
    begin.record()
    for _ in range(5):
        tensor = tensor + 1
    end.record()
    assert not end.query()  # the host is far ahead
    end.synchronize()
    assert begin.elapsed_time(end) >= 999.0


def test_streams_wait_for_each_other_by_events() -> None:
    fake.pace(kernel_microseconds=50_000)
    side, ready = torch.cuda.Stream(), torch.cuda.Event()
    with torch.cuda.stream(side):
        torch.ones(1, device="cuda")
        ready.record()
    assert torch.cuda.current_stream().query()
    torch.cuda.current_stream().wait_event(ready)
    assert not torch.cuda.current_stream().query()


def test_generators_draw_what_the_cpu_s_draw() -> None:
    torch.manual_seed(7)
    here = torch.randn(5), torch.randperm(9)
    torch.manual_seed(7)
    there = torch.randn(5, device="cuda"), torch.randperm(9, device="cuda")
    assert [each.tolist() for each in here] == [each.cpu().tolist() for each in there]
    state = torch.cuda.get_rng_state()
    first = torch.rand(3, device="cuda").cpu()
    torch.cuda.set_rng_state(state)
    assert torch.equal(first, torch.rand(3, device="cuda").cpu())


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.attention(x, x, x)[0]).mean(1)


def convolves() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(36, 16),
    )


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, foreach=True),
    "adamw fused": lambda parameters: torch.optim.AdamW(parameters, fused=True),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", [convolves, Attends])
@pytest.mark.parametrize("scaled", [False, True])
def test_training_gives_the_cpu_s_bits(model: Any, optimizer: str, scaled: bool) -> None:
    def train(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        made = model()
        data = torch.randn(6, 1, 8, 8) if model is convolves else torch.randn(6, 5, 16)
        made.to(device)
        stepper = OPTIMIZERS[optimizer](made.parameters())
        scaler = torch.amp.GradScaler(device, enabled=scaled)
        for step in range(3):
            torch.manual_seed(step)
            stepper.zero_grad()
            loss = made(data.to(device)).square().mean()
            scaler.scale(loss).backward()
            scaler.step(stepper)
            scaler.update()
        return [value.cpu() for value in made.state_dict().values()]

    assert all(torch.equal(one, other) for one, other in zip(train("cpu"), train("cuda"), strict=True))


def test_modules_and_checkpoints_move(tmp_path: Path) -> None:
    model = nn.Linear(4, 2).to("cuda")
    torch.save(model.state_dict(), tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=True)
    assert {tensor.device.type for tensor in loaded.values()} == {"cuda"}
    here = torch.load(tmp_path / "model.pt", weights_only=True, map_location="cpu")
    assert all(torch.equal(here[name], tensor.cpu()) for name, tensor in loaded.items())


def member(rank: int, store_file: str, dies: bool) -> None:
    """A process of the pair below. Says what becomes of a collective whose peer is gone."""
    options = dist.ProcessGroupNCCL.Options()
    group = dist.ProcessGroupNCCL(dist.FileStore(store_file, 2), rank, 2, options)
    group.eager_connect_single_device(torch.device("cuda"))
    total = torch.ones(4, device="cuda") * (rank + 1)
    group.allreduce([total]).wait()
    assert total.tolist() == [3.0] * 4
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.5)
    lost = torch.ones(4, device="cuda")
    work = group.allreduce([lost])
    time.sleep(1.0)
    print("hangs" if not work.is_completed() else "ended")
    group.abort()
    work.wait()
    print("silent", "garbage" if lost.tolist() not in ([1.0] * 4, [2.0] * 4) else "values")
    try:
        group.allreduce([lost])
    except dist.DistBackendError as error:
        print(error)
    sys.stdout.flush()
    os._exit(0)


def test_a_collective_whose_peer_is_dead_hangs_until_it_is_aborted(tmp_path: Path) -> None:
    command = "from tests.fakecuda.checks import member; member({}, {!r}, {})"
    store = str(tmp_path / "store")
    environment = os.environ | fakecuda.environment(2) | {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
    pair = [
        subprocess.Popen(
            [sys.executable, "-c", command.format(rank, store, rank == 1)],
            env=environment, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    assert pair[1].wait(60) == -signal.SIGKILL
    said = pair[0].communicate(timeout=60)[0].splitlines()
    pair[1].communicate()
    assert said == ["hangs", "silent garbage", "NCCL communicator was aborted on rank 0."]


def test_a_tensor_of_the_host_is_refused_by_collectives() -> None:
    group = dist.ProcessGroupNCCL(dist.HashStore(), 0, 1)
    with pytest.raises(ValueError, match="Tensors must be CUDA"):
        group.allreduce([torch.ones(1)])
