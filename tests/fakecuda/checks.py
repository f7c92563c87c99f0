"""What the CUDA device for tests does as a GPU does. Runs in a process that has it: see ``test_fakecuda``."""

from __future__ import annotations

import contextlib
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
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim.swa_utils import AveragedModel, get_swa_multi_avg_fn

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


def test_a_device_can_be_told_to_be_done() -> None:
    fake.pace(kernel_microseconds=600e6)
    torch.ones(1, device="cuda")
    assert not torch.cuda.current_stream().query()
    fake.catch_up()
    assert torch.cuda.current_stream().query()


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
    assert drawn_in_turns("cpu") == drawn_in_turns("cuda")
    state = torch.cuda.get_rng_state()
    first = torch.rand(3, device="cuda").cpu()
    torch.cuda.set_rng_state(state)
    assert torch.equal(first, torch.rand(3, device="cuda").cpu())


def drawn_in_turns(device: str) -> list[Any]:
    """What operators draw one after another, with a generator as an argument or without."""
    torch.manual_seed(3)
    ones = torch.ones(4, 8, device=device)
    noise, dropped = torch.randn_like(ones), nn.functional.dropout(ones, 0.3)
    return [each.tolist() for each in (noise, dropped, torch.rand(3, device=device), nn.functional.dropout(ones, 0.5))]


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


@pytest.mark.parametrize("optimizer", [torch.optim.NAdam, torch.optim.RAdam, torch.optim.ASGD])
def test_optimizers_that_update_lists_round_as_lists_do_on_the_cpu(optimizer: Any) -> None:
    """Why scripts of the corpus with these have other bits on accelerators: torch chooses lists for them there."""

    def train(device: str, **options: bool) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        weight = nn.Parameter(torch.randn(16, 10, generator=generator).to(device))
        stepper = optimizer([weight], **options)
        for _ in range(10):
            weight.grad = torch.randn(16, 10, generator=generator).to(device)
            stepper.step()
        return weight.detach().cpu()

    assert torch.equal(train("cuda"), train("cpu", foreach=True))
    assert torch.equal(train("cuda", foreach=False), train("cpu"))
    assert not torch.equal(train("cuda"), train("cpu"))


def test_averages_of_weights_round_as_lists_do_on_the_cpu() -> None:
    def average(device: str, **options: Any) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        layer = nn.Linear(10, 16).to(device)
        averaged = AveragedModel(layer, **options)
        for _ in range(3):
            layer.weight.data.copy_(torch.randn(16, 10, generator=generator))
            averaged.update_parameters(layer)
        return averaged.module.weight.detach().cpu()

    assert torch.equal(average("cuda"), average("cpu", multi_avg_fn=get_swa_multi_avg_fn()))
    assert not torch.equal(average("cuda"), average("cpu"))


def test_attention_is_that_of_the_cpu_without_a_kernel_of_its_own() -> None:
    def gradient(device: str, *kernels: SDPBackend) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        query = torch.randn(2, 4, 12, 8, generator=generator).to(device).requires_grad_()
        with sdpa_kernel([*kernels]) if kernels else contextlib.nullcontext():
            nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True).square().sum().backward()
        assert query.grad is not None
        return query.grad.cpu()

    assert torch.equal(gradient("cuda"), gradient("cpu", SDPBackend.MATH))
    assert not torch.equal(gradient("cuda"), gradient("cpu"))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_layers_give_what_the_cpu_s_give_up_to_rounding(kind: Any, bias: bool) -> None:
    def run(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        layer, x = kind(8, 12, num_layers=2, bidirectional=True, bias=bias), torch.randn(5, 3, 8)
        packed = nn.utils.rnn.pack_padded_sequence(x.to(device), torch.tensor([5, 3, 2]))
        out = layer.to(device)(packed)[0].data
        out.square().sum().backward()
        return [out.detach().cpu(), *(parameter.grad.cpu() for parameter in layer.parameters())]

    torch.testing.assert_close(run("cuda"), run("cpu"), rtol=1e-4, atol=1e-5)
    assert all(torch.equal(one, other) for one, other in zip(run("cuda"), run("cuda"), strict=True))


def test_what_is_one_kernel_on_a_gpu_is_the_cpu_s_kernel() -> None:
    def gradient(device: str, function: Any) -> torch.Tensor:
        x = torch.linspace(-3, 3, 50).to(device).requires_grad_()
        function(x).sum().backward()
        assert x.grad is not None
        return x.grad.cpu()

    for function in (nn.functional.silu, nn.functional.mish, nn.functional.gelu):
        assert torch.equal(gradient("cuda", function), gradient("cpu", function)), function
    counted = torch.histc(torch.tensor([0, 2, 2, 1], dtype=torch.int32, device="cuda"), bins=3, min=0, max=2)
    assert (counted.dtype, counted.tolist()) == (torch.int32, [1, 1, 2])


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


def test_an_abort_leaves_garbage_in_what_is_written_and_not_in_what_is_sent() -> None:
    group = dist.ProcessGroupNCCL(dist.HashStore(), 0, 2)  # the other one never comes
    sent, summed, options = torch.ones(4, device="cuda"), torch.ones(4, device="cuda"), dist.BroadcastOptions()
    with fake.counting() as counts:
        works = [group.broadcast([sent], options), group.allreduce([summed])]
    assert (counts["collectives"], counts["bytes_in_collectives"]) == (2, 32)
    group.abort()
    for work in works:
        work.wait()
    assert sent.tolist() == [1.0] * 4
    assert summed.tolist() != [1.0] * 4


def test_a_number_of_the_host_is_waited_for_when_it_is_copied() -> None:
    with fake.counting() as counts:
        torch.ones(()).to("cuda")
    assert (counts["implicit_syncs"], counts["bytes_to_device"]) == (1, 4)


def test_a_tensor_of_the_host_is_refused_by_collectives() -> None:
    group = dist.ProcessGroupNCCL(dist.HashStore(), 0, 1)
    with pytest.raises(ValueError, match="Tensors must be CUDA"):
        group.allreduce([torch.ones(1)])
