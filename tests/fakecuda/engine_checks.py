"""What a step asks of an accelerator. Runs in a process that has the CUDA device for tests: see ``test_fakecuda``."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import virtualflow as vf
from tests.fakecuda import install as fake
from tests.fakecuda.group_checks import busy_for
from tests.fakecuda.silent_group import one_of_two
from virtualflow.core import faults
from virtualflow.train import accelerators, solo
from virtualflow.train.checkpoint import onto
from virtualflow.train.readback import Readback
from virtualflow.train.upload import Upload

NODES, BATCH = 4, 16


@pytest.fixture(autouse=True)
def as_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("VF_HOME", str(tmp_path))
    yield
    faults.arm(None)
    fake.pace()
    fake.set_capacity(0, 2**62)
    torch.cuda.set_sync_debug_mode(0)


def convolves() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(8 * 36, 10)
    )


def mean_loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1])


def weighed_loss(model: nn.Module, batch: list[Tensor]) -> tuple[Tensor, Tensor]:
    losses = cross_entropy(model(batch[0]), batch[1], reduction="none")
    return losses.sum(), torch.ones_like(losses).sum()


def examples() -> TensorDataset:
    generator = torch.Generator().manual_seed(2)
    return TensorDataset(
        torch.randn(10 * BATCH, 1, 8, 8, generator=generator), torch.randint(0, 10, (10 * BATCH,), generator=generator)
    )


def trained(steps: int, last: Callable[[Callable[[], float]], Any], loss_fn: Any = mean_loss, **options: Any) -> str:
    """Train for some *steps*; the last one is handed to a function that makes it."""
    vf.seed(1)
    model = convolves().to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    trainer = vf.Trainer(model, optimizer, loss_fn, batch_size=BATCH, virtual_nodes=NODES, **options)
    for _ in trainer.epochs(1):
        for number, batch in enumerate(trainer.batches(examples())):
            if number + 1 < steps:
                trainer.step(batch)
            else:
                last(lambda: trainer.step(batch))  # noqa: B023  (called at once)
                return trainer.digest()
    raise AssertionError("more steps than batches")


def plain_launches() -> int:
    """Of a step of a loop without VirtualFlow, on the same model and as many examples."""
    model = convolves().to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(2):
        with fake.counting() as counts:
            for _ in range(NODES):
                size = BATCH // NODES
                batch = [tensor[:size].pin_memory().to("cuda", non_blocking=True) for tensor in examples().tensors]
                (mean_loss(model, batch) / NODES).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return counts["launches"]


# Without Triton, beside what a plain loop launches: in each virtual node, and once in a step. Batch norm's statistics
# are summed exactly in both; Triton makes one launch of the 19 of a sum.
LAUNCHES = {"exact": (46, 55), "fast": (34, 30)}


@pytest.mark.parametrize("reduction", ["exact", "fast"])
@pytest.mark.parametrize("loss_fn", [mean_loss, weighed_loss])
@pytest.mark.parametrize("options", [{}, {"clip_grad_norm": 0.1}])
def test_the_host_waits_once_in_a_step(reduction: str, loss_fn: Any, options: dict[str, Any]) -> None:
    counts: dict[str, int] = {}
    trained(4, lambda step: counted(step, counts), loss_fn, reduction=reduction, **options)
    norm_is_late = reduction == "fast" and bool(options)
    norm_needs_the_weight = reduction == "exact" and loss_fn is weighed_loss
    assert counts["implicit_syncs"] + counts["explicit_syncs"] == 1 + norm_is_late + norm_needs_the_weight
    in_a_node, in_a_step = LAUNCHES[reduction]
    in_a_node += 3 * (loss_fn is weighed_loss)  # its own sum and weight
    assert counts["launches"] <= plain_launches() + NODES * in_a_node + in_a_step


@pytest.mark.parametrize("reduction", ["exact", "fast"])
def test_a_peer_costs_no_further_wait_and_few_launches(reduction: str) -> None:
    solo.start_over(one_of_two())
    counts: dict[str, int] = {}
    trained(4, lambda step: counted(step, counts), reduction=reduction)
    assert counts["implicit_syncs"] + counts["explicit_syncs"] == 1
    in_a_node, in_a_step = LAUNCHES[reduction]
    assert counts["launches"] <= plain_launches() // 2 + NODES // 2 * in_a_node + in_a_step + 10
    assert counts["to_device"] == NODES  # images and labels of half of the virtual nodes


def counted(step: Callable[[], float], counts: dict[str, int]) -> None:
    before = fake.counts()
    step()
    torch.cuda.current_stream().synchronize()
    counts.update({name: count - before[name] for name, count in fake.counts().items()})
    counts["explicit_syncs"] -= 1


@pytest.mark.parametrize("reduction", ["exact", "fast"])
@pytest.mark.parametrize("loss_fn", [mean_loss, weighed_loss])
def test_no_wave_waits_for_the_device(reduction: str, loss_fn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Readback.read

    def let_read(self: Readback) -> None:
        torch.cuda.set_sync_debug_mode("default")
        read(self)

    def forbid(point: str) -> None:
        if point == "forward":
            torch.cuda.set_sync_debug_mode("error")

    monkeypatch.setattr(Readback, "read", let_read)

    def step_strictly(step: Callable[[], float]) -> None:
        faults.arm(forbid)
        step()
        faults.arm(None)

    trained(4, step_strictly, loss_fn, reduction=reduction)


class Reports(solo.Solo):
    """Keeps what its worker reports of its pace."""

    def __init__(self) -> None:
        super().__init__()
        self.job = replace(self.job, device_type="cuda")
        self.wave_seconds = 0.0

    def report_pace(self, step: int, seconds: float, overran: int) -> None:
        self.wave_seconds = seconds


def test_waves_are_timed_by_the_device() -> None:
    reports = Reports()
    solo.start_over(reports)
    vf.seed(1)
    model = convolves().to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    trainer = vf.Trainer(model, optimizer, mean_loss, batch_size=BATCH, virtual_nodes=NODES)
    for _ in trainer.epochs(1):
        for number, batch in enumerate(trainer.batches(examples())):
            if number == 2:  # those before it look for more than others do
                fake.pace(kernel_microseconds=3000)
            with fake.counting() as counts:
                trainer.step(batch)
            if number == 2:
                in_waves = reports.wave_seconds / (0.003 * counts["launches"])
                assert 0.5 < in_waves <= 1.0, in_waves  # the rest of the launches are the update's
                return


def test_shards_are_copied_from_pinned_memory_and_at_most_two_are_there() -> None:
    upload, where = Upload(torch.device("cuda")), []
    for number in range(5):
        with fake.counting() as counts:
            shard = upload({"x": torch.full((1000,), float(number)), "y": [torch.ones(3)]})
        assert counts["implicit_syncs"] == 0
        assert shard["x"].cpu().tolist() == [float(number)] * 1000
        where.append(shard["x"].data_ptr())
        del shard
    assert len(set(where)) == 2
    kept = upload({"x": torch.ones(1000)})
    for _ in range(4):
        upload({"x": torch.zeros(1000)})
    assert kept["x"].cpu().tolist() == [1.0] * 1000  # a script that kept it keeps its values


def test_where_addends_go_is_told_to_the_device_without_a_wait_and_kept_for_a_few_batches() -> None:
    from virtualflow.train import batched_sums, triton_sums

    values = [torch.ones(3 * triton_sums.CHUNK + 5, device="cuda"), torch.ones(7, device="cuda")]
    sums: Any = triton_sums.TritonAccumulator(values)
    batch = [batched_sums.Addend(slot, 10000 * slot, value, 0.0, 1.0, True) for slot, value in enumerate(values)]
    with fake.counting() as counts:
        places, of_addend, of_chunk = sums.placed(batch)
    assert (counts["implicit_syncs"], counts["to_device"]) == (0, 1)
    assert places.tolist() == [[0, 10000], [3 * triton_sums.CHUNK + 5, 7], [0, 1]]
    assert (of_addend.tolist(), of_chunk.tolist()) == ([0, 0, 0, 0, 1], [0, 1, 2, 3, 0])
    assert sums.placed(batch)[0] is places
    for start in range(triton_sums.KEPT_BATCHES):  # of a model that uses other parts of itself each time
        sums.placed([batched_sums.Addend(0, start, values[1], 0.0, 1.0, True)])
    with fake.counting() as counts:
        sums.placed(batch)
    assert counts["to_device"] == 1  # once more: it was forgotten


def test_an_error_of_the_device_is_not_hidden_by_the_look_at_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: Any) -> tuple[int, int]:
        raise RuntimeError("CUDA error: the same once more")  # as every call after one that has failed

    def fails(model: nn.Module, batch: list[Tensor]) -> Tensor:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "mem_get_info", broken)
    with pytest.raises(RuntimeError, match="device-side assert triggered"):
        trained(1, lambda step: step(), fails)


def test_a_wave_asks_its_own_device_for_its_memory_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    look = torch.accelerator.memory_allocated
    monkeypatch.setattr(torch.accelerator, "memory_allocated", lambda index: asked.append(index) or look(index))
    trained(2, lambda step: step())
    assert set(asked) == {0}
    assert accelerators.allocated_bytes() == sum(map(look, range(2)))


@pytest.mark.parametrize("reduction", ["exact", "fast"])
def test_out_of_memory_names_the_virtual_node_and_a_size_that_may_fit(reduction: str) -> None:
    def grows(model: nn.Module, batch: list[Tensor]) -> Tensor:
        needed = 100_000 * len(batch[0])
        return mean_loss(model, batch) + 0 * torch.zeros(needed // 4, device="cuda").sum()

    gc.collect()  # what other tests have left
    torch.empty(2_000_000, device="cuda")  # a peak of something else, which says nothing of the virtual node
    fake.set_capacity(0, torch.cuda.memory_allocated() + 250_000)
    with pytest.raises(vf.errors.DeviceMemoryError) as caught:
        trained(1, lambda step: step(), grows, reduction=reduction)
    told = str(caught.value)
    assert f"out of memory in step 0, virtual node 0 with {BATCH // NODES} examples: CUDA out of memory" in told
    assert "Tried to allocate 400000 bytes" in told
    size = int(told.split("about ")[1].split()[0])
    assert 1 <= size <= 2


class Grows(nn.Module):
    """A layer, and a table that its forward enlarges."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)
        self.register_buffer("table", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if len(self.table) == 1:
            self.table = torch.ones(10, device=x.device)
        return self.layer(x.flatten(1)) + self.table


@pytest.mark.parametrize(("there", "here"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_a_job_goes_on_where_the_devices_are_of_another_type(tmp_path: Path, there: str, here: str) -> None:
    """With other bits, since kernels round otherwise on real ones, and with all tensors where they belong."""

    path = tmp_path / "c.pt"

    def train(device_type: str) -> tuple[vf.Trainer, Tensor]:
        alone = solo.Solo()
        alone.job = replace(alone.job, device_type=device_type)
        solo.start_over(alone)
        vf.seed(1)
        model, kept = Grows(), vf.State(mean=torch.zeros(10, device=device_type))
        optimizer = torch.optim.Adam(model.parameters())
        trainer = vf.Trainer(model, optimizer, mean_loss, batch_size=BATCH, virtual_nodes=NODES, state=[kept])
        if path.exists():
            trainer.load(path)
        for _ in trainer.epochs(1):
            for batch in trainer.batches(examples()):
                trainer.step(batch)
                kept.mean = 0.9 * kept.mean + model.layer.bias.detach()
                if trainer.global_step == 2:
                    trainer.save(path)
        return trainer, kept.mean

    (whole, mean), (resumed, mean_here) = train(there), train(here)
    assert resumed.digest() == whole.digest()  # this device has the CPU's kernels
    assert mean_here.device.type == here
    assert torch.equal(mean.cpu(), mean_here.cpu())


def test_what_another_worker_has_saved_comes_to_this_one_s_device(tmp_path: Path) -> None:
    torch.save([torch.ones(2, device="cuda:1"), torch.zeros(2)], tmp_path / "saved.pt")
    for device, places in (("cuda:0", ["cuda:0", "cpu"]), ("cpu", ["cpu", "cpu"])):
        loaded = torch.load(tmp_path / "saved.pt", weights_only=True, map_location=onto(torch.device(device)))
        assert [str(tensor.device) for tensor in loaded] == places
        assert loaded[0].tolist() == [1.0, 1.0]


def test_a_device_without_float64_is_asked_in_exact_mode_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(device: torch.device) -> None:
        raise vf.errors.ConfigError(f"{device.type} has no float64")

    monkeypatch.setattr(accelerators, "check_float64", refused)
    trained(1, lambda step: step(), reduction="fast")
    with pytest.raises(vf.errors.ConfigError, match="cuda has no float64"):
        trained(1, lambda step: step())


def test_tensors_that_the_script_has_left_on_the_host_are_told_with_where_they_belong() -> None:
    weights = torch.ones(10)

    def mixes(model: nn.Module, batch: list[Tensor]) -> Tensor:
        return cross_entropy(model(batch[0]) * weights, batch[1])

    with pytest.raises(vf.errors.ConfigError, match=r"step 0, virtual node 0 .*two devices: .*device=inputs"):
        trained(1, lambda step: step(), mixes)


def test_a_shard_is_copied_beside_the_computation_and_not_into_memory_in_use() -> None:
    upload, computing = Upload(torch.device("cuda")), torch.accelerator.current_stream()
    upload(torch.zeros(10))
    busy_for(2.0)  # with the first shard
    upload(torch.zeros(10))
    assert upload.stream.query()
    assert not computing.query()
    upload(torch.zeros(10))  # where the first one was
    assert not upload.stream.query()
    fake.catch_up()


def test_the_computation_waits_for_its_shard() -> None:
    upload, computing = Upload(torch.device("cuda")), torch.accelerator.current_stream()
    with upload.stream:
        busy_for(2.0)
    assert computing.query()
    upload(torch.zeros(10))
    assert not computing.query()
    fake.catch_up()
