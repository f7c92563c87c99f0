"""Checkpoints: whole or not at all, readable by any number of devices, refused when they do not fit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import virtualflow as vf
from tests.train.small import make, mlp, regression, train
from virtualflow.errors import CheckpointError

pytestmark = pytest.mark.on_cuda_too


def test_a_resumed_job_goes_on_from_the_very_step(tmp_path: Path) -> None:
    data = regression()
    whole = make()
    expected = train(whole, data, epochs=3)
    part = make()
    begun = []
    for _ in part.epochs(2):
        for batch in part.batches(data):
            begun.append(part.step(batch))
            if part.global_step == 7:
                part.save(tmp_path / "c.pt")
                break
    rest = make()
    rest.load(tmp_path / "c.pt")
    assert rest.global_step == 7
    assert begun + train(rest, data, epochs=3) == expected
    assert rest.digest() == whole.digest()


def test_a_save_after_the_batches_counts_the_epoch_as_finished(tmp_path: Path) -> None:
    trainer = make()
    for epoch in trainer.epochs(3):
        for batch in trainer.batches(regression()):
            trainer.step(batch)
        if epoch == 1:
            trainer.save(tmp_path / "c.pt")
            break
    resumed = make()
    resumed.load(tmp_path / "c.pt")
    assert list(resumed.epochs(3)) == [2]


def test_flags_groups_schedules_and_scalers_come_back(tmp_path: Path) -> None:
    def build() -> tuple[vf.Trainer, nn.Module, torch.optim.lr_scheduler.StepLR, torch.amp.GradScaler]:
        vf.seed(0)
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        return make(model, optimizer=optimizer, state=[schedule], grad_scaler=scaler), model, schedule, scaler

    trainer, model, schedule, scaler = build()
    train(trainer, regression())
    schedule.step()
    scaler.update(4.0)
    model[0].requires_grad_(False)
    model[1].eval()
    trainer.save(tmp_path / "c.pt")
    loaded, model, schedule, scaler = build()
    loaded.load(tmp_path / "c.pt")
    assert not model[0].weight.requires_grad
    assert not model[1].training
    assert schedule.last_epoch == 1
    assert scaler.get_scale() == 4.0


class Remembers(nn.Module):
    """A layer with extra state, and a table that its forward enlarges."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 1)
        self.last: torch.Tensor | None = None
        self.register_buffer("table", torch.zeros(1))

    def get_extra_state(self) -> torch.Tensor | None:
        return self.last

    def set_extra_state(self, state: torch.Tensor | None) -> None:
        self.last = state

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(self.table) == 1:
            self.table = torch.arange(5.0, device=x.device)
        return self.layer(x)


class Averages(torch.optim.SGD):
    """Keeps an average of each parameter, in a state_dict of its own."""

    averages: dict[int, torch.Tensor]

    def state_dict(self) -> dict[str, object]:
        return {"sgd": super().state_dict(), "averages": self.averages}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state["sgd"])
        self.averages = state["averages"]


def with_tensors() -> tuple[vf.Trainer, Remembers, Averages, vf.State]:
    vf.seed(0)
    model = Remembers()
    optimizer = Averages(model.parameters(), lr=0.1)
    optimizer.averages = {}
    kept = vf.State(best=None, first=torch.zeros(()), host=None, once={})
    trainer = make(model, optimizer=optimizer, state=[kept])
    return trainer, model, optimizer, kept


def tensors_of(trainer: vf.Trainer, model: Remembers, optimizer: Averages, kept: vf.State) -> list[Any]:
    return [kept.best, kept.first, kept.host, kept.once["weight"], model.last, model.table, optimizer.averages[0]]


@pytest.mark.parametrize("when", ["in an epoch", "at its end", "before its end"])
def test_tensors_come_back_to_where_they_were(tmp_path: Path, when: str) -> None:
    trainer, model, optimizer, kept = with_tensors()
    for _ in trainer.epochs(1):
        weight = model.layer.weight.detach()
        kept.once = {"weight": weight.clone()}  # a part of the settings at the top
        for batch in trainer.batches(regression()):
            trainer.step(batch)
            kept.best, kept.first, kept.host = weight + 1, weight.sum(), weight.cpu() + 2
            model.last, optimizer.averages = weight + 3, {0: weight + 4}
            if when == "in an epoch" and trainer.global_step == 2:
                break
        trainer.save(tmp_path / "c.pt")
        if when == "before its end":
            kept.best = kept.best + 1  # what was saved is made up for this
    loaded = with_tensors()
    loaded[0].load(tmp_path / "c.pt")
    before, after = tensors_of(trainer, model, optimizer, kept), tensors_of(*loaded)
    assert [each.device for each in after] == [each.device for each in before]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


KILLED = """
import os, signal, sys, torch
from pathlib import Path
from virtualflow.train import checkpoint
checkpoint.write(Path(sys.argv[1]), {"tensor": torch.zeros(10)})
real = os.fsync
def kill(descriptor):
    os.kill(os.getpid(), signal.SIGKILL)
os.fsync = kill
checkpoint.write(Path(sys.argv[1]), {"tensor": torch.ones(10)})
"""


def test_a_kill_while_saving_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    ended = subprocess.run([sys.executable, "-c", KILLED, str(path)], timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert torch.load(path, weights_only=True)["tensor"].sum() == 0


def test_damaged_and_foreign_files_get_clear_errors(tmp_path: Path) -> None:
    trainer = make()
    train(trainer, regression())
    path = tmp_path / "c.pt"
    trainer.save(path)
    whole = path.read_bytes()
    for damage, message in (
        (whole[: len(whole) // 2], "truncated"),
        (b"", "truncated"),
        (b"hello", "not a VirtualFlow checkpoint"),
    ):
        path.write_bytes(damage)
        with pytest.raises(CheckpointError, match=message):
            trainer.load(path)
    torch.save(mlp().state_dict(), path)
    with pytest.raises(CheckpointError, match="plain state_dict"):
        trainer.load(path)
    torch.save({"format": "virtualflow checkpoint", "version": 99}, path)
    with pytest.raises(CheckpointError, match="version 99"):
        trainer.load(path)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        trainer.load(tmp_path / "missing.pt")


@pytest.mark.parametrize("other", [{"seed": 9}, {"batch_size": 12}, {"virtual_nodes": 2}])
def test_a_checkpoint_of_another_job_is_refused_unless_forced(tmp_path: Path, other: dict[str, int]) -> None:
    trainer = make()
    train(trainer, regression())
    trainer.save(tmp_path / "c.pt")
    another = make(**other)
    with pytest.raises(CheckpointError, match=f"{next(iter(other))}.* there.*force=True"):
        another.load(tmp_path / "c.pt")
    another.load(tmp_path / "c.pt", force=True)
    assert another.digest() == trainer.digest()
    train(another, regression(), epochs=2)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    make().save(tmp_path / "c.pt")
    with pytest.raises(CheckpointError, match="another model"):
        make(nn.Linear(6, 1)).load(tmp_path / "c.pt")
    with pytest.raises(CheckpointError, match="another model"):
        make(nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 1))).load(tmp_path / "c.pt")


def test_export_writes_a_plain_state_dict(tmp_path: Path) -> None:
    vf.seed(0)
    model = mlp()
    trainer = make(torch.compile(model, backend="eager", dynamic=False))
    trainer.export(tmp_path / "model.pt")
    written = torch.load(tmp_path / "model.pt", weights_only=True)
    assert {tensor.device.type for tensor in written.values()} == {"cpu"}  # it loads where there is nothing else
    fresh = mlp()
    fresh.load_state_dict(written)
    assert torch.equal(fresh[0].weight, model[0].weight.cpu())


def test_tied_weights_are_exported_once(tmp_path: Path) -> None:
    model = mlp()
    model.add_module("again", model[0])
    make(model).export(tmp_path / "model.pt")
    written = torch.load(tmp_path / "model.pt", weights_only=True)
    assert written["again.weight"].data_ptr() == written["0.weight"].data_ptr()
    assert written._metadata[""] == {"version": 1}


def test_a_folder_that_can_not_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot write"):
        make().save(tmp_path / "file" / "c.pt")


def test_state_that_can_not_be_saved_is_refused_at_once() -> None:
    class Odd:
        def state_dict(self) -> dict[str, object]:
            return {"thing": os.getpid}

        def load_state_dict(self, state: object) -> None: ...

    with pytest.raises(CheckpointError, match="Odd"):
        make(state=[Odd()])
    with pytest.raises(vf.VirtualFlowError, match="no state_dict"):
        make(state=[object()])
