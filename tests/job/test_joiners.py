"""Who joins later runs the script from the top, as it was at the start, and comes out where the job stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Finished
from tests.job.driven import TRAIN, Driven, to, to_others
from virtualflow.backends.local import LocalBackend
from virtualflow.events.certificate import compare
from virtualflow.job.coordinator import Coordinator

pytestmark = pytest.mark.on_cuda_too

MODULE = """
from torch import nn

def build():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 3))
"""
SCRIPT = """
import torch, virtualflow as vf
import layers
from tests.train.small import accuracy, classes, cross

vf.seed(3)
model = layers.build()
data = classes()
optimizer = torch.optim.SGD(model[3].parameters(), lr=0.1, momentum=0.9)
model[0].requires_grad_(False)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, gamma=0.9)
trainer = vf.Trainer(model, optimizer, cross, batch_size=8, virtual_nodes=6, state=[schedule])
before = trainer.evaluate(data, accuracy)
for epoch in trainer.epochs(20):
    if epoch == 2:
        model[0].requires_grad_(True)
        optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.01})
    for number, batch in enumerate(trainer.batches(data)):
        loss = trainer.step(batch)
        if trainer.is_lead:
            with (folder / "log").open("a") as log:
                log.write(f"epoch {epoch} step {trainer.global_step} loss {loss.hex()}\\n")
        pace(trainer)
    schedule.step()
print(before.hex(), number, optimizer.param_groups[1]["lr"], trainer.digest())
"""


def assert_same(calm: Finished, finished: Finished) -> None:
    """Every step has the same bits, and whoever was there at the end said the same."""
    assert calm.outcome.code == 0, calm.failure
    assert finished.outcome.code == 0, finished.failure
    verdict = compare(calm.certificate, finished.certificate)
    assert verdict.equal, verdict
    assert [step.step for step in finished.steps] == [step.step for step in calm.steps]
    outputs = {text.decode() for (_, stream), text in finished.printed.text.items() if stream == "stdout"}
    assert outputs == {calm.out()}


def test_a_joiner_runs_the_script_that_the_job_began_with(
    backend: LocalBackend, cpus: LocalBackend, tmp_path: Path
) -> None:
    def edit(_: Coordinator) -> None:
        for name in ("script.py", "layers.py"):
            (disturbed.folder / name).write_text("raise RuntimeError('edited')")

    calm, disturbed = Driven(cpus, tmp_path / "calm", SCRIPT), Driven(backend, tmp_path / "disturbed", SCRIPT)
    for driven in (calm, disturbed):
        (driven.folder / "layers.py").write_text(MODULE)
    expected = calm.run()
    finished = disturbed.run(2, [(2, edit), (17, to(4)), (30, to(3)), (35, to(6))])
    assert_same(expected, finished)
    assert [len(change.devices) for change in finished.changes] == [4, 3, 6]
    assert all(change.step > 10 for change in finished.changes)  # after the layers were unfrozen
    assert (disturbed.folder / "log").read_text() == (calm.folder / "log").read_text()


def test_a_job_moves_to_wholly_other_devices_and_back(
    backend: LocalBackend, cpus: LocalBackend, tmp_path: Path
) -> None:
    script = TRAIN + "print(trainer.digest())\n"
    plan = [(3, to_others("a", "b", "c")), (6, to_others("x")), (9, to_others("0", "1"))]
    calm = Driven(cpus, tmp_path / "calm", script).run()
    finished = Driven(backend, tmp_path / "disturbed", script).run(2, plan)
    assert_same(calm, finished)
    assert [change.devices for change in finished.changes] == [["a", "b", "c"], ["x"], ["0", "1"]]


def test_a_job_without_a_seed_can_be_resized(backend: LocalBackend, tmp_path: Path) -> None:
    script = """
import torch, virtualflow as vf
from tests.train.small import mlp, mse, regression

model = mlp()
trainer = vf.Trainer(model, torch.optim.Adam(model.parameters()), mse, batch_size=8, virtual_nodes=4)
for _ in trainer.epochs(20):
    for batch in trainer.batches(regression()):
        trainer.step(batch)
        pace(trainer)
print(trainer.digest())
"""
    finished = Driven(backend, tmp_path, script).run(2, [(3, to(4)), (6, to(1)), (9, to(3))])
    assert finished.outcome.code == 0, finished.failure  # replicas were compared at the end of each epoch
    assert len(finished.steps) == 100
    assert [len(change.devices) for change in finished.changes] == [4, 1, 3]
    outputs = {text.decode() for (_, stream), text in finished.printed.text.items() if stream == "stdout"}
    assert len(outputs) == 1


def test_calls_around_the_batches_of_an_epoch_agree_through_resizes(
    backend: LocalBackend, cpus: LocalBackend, tmp_path: Path
) -> None:
    script = """
import virtualflow as vf
from tests.train.small import accuracy, classes, cross, make, mlp

vf.seed(0)
data = classes()
trainer = make(mlp(out=3), loss_fn=cross, virtual_nodes=5)
seen = {}
for epoch in trainer.epochs(20):
    before = trainer.evaluate(data, accuracy), trainer.predict(data).double().sum().item()
    trainer.save(folder / "before.pt")
    for batch in trainer.batches(data):
        trainer.step(batch)
        pace(trainer)
        if trainer.global_step % 7 == 0:
            trainer.evaluate(data, accuracy)
    trainer.save(folder / "after.pt")
    seen[epoch] = before, trainer.evaluate(data, accuracy), trainer.predict(data).double().sum().item()
print(seen[19], trainer.digest())
"""
    calm = Driven(cpus, tmp_path / "calm", script).run()
    disturbed = Driven(backend, tmp_path / "disturbed", script)
    finished = disturbed.run(2, [(2, to(5)), (8, to(1)), (11, to(4)), (18, to_others("a", "b")), (22, to(3))])
    assert_same(calm, finished)
    assert len(finished.changes) == 5
    assert (disturbed.folder / "after.pt").exists()


def test_results_of_calls_before_the_loop_reach_joiners_however_large_and_slow_they_are(
    backend: LocalBackend, cpus: LocalBackend, tmp_path: Path
) -> None:
    script = """
import virtualflow as vf
from tests.train.small import make, mlp, mse, regression

vf.seed(0)
trainer = make(mlp())
def slow(model, batch):
    if (folder / "slow").exists():
        time.sleep(0.2)  # longer in all than a worker has patience
    return mse(model, batch), 1
before = trainer.evaluate(regression(), slow)
wide = trainer.predict(regression(2000), lambda model, batch: model(batch[0]).expand(-1, 100).contiguous())
for _ in trainer.epochs(10):
    for batch in trainer.batches(regression()):
        trainer.step(batch)
        pace(trainer)
print(before.hex(), wide.double().sum().item(), trainer.digest())
"""
    calm = Driven(cpus, tmp_path / "calm", script).run()
    disturbed = Driven(backend, tmp_path / "disturbed", script, patience_seconds=1.0)
    # The first one joins while the job still evaluates; the second one is sent all the results at once.
    finished = disturbed.run(2, [(0, to(3)), (5, to(4))])
    assert_same(calm, finished)
    assert [len(change.devices) for change in finished.changes] == [3, 4]


ANNEALED = """
import virtualflow as vf
from tests.train.small import make, mlp, mse, regression

temperature = 1.0

def loss_fn(model, batch):
    return mse(model, batch) / temperature

vf.seed(0)
trainer = make(mlp(), loss_fn)
for _ in trainer.epochs(20):
    for batch in trainer.batches(regression()):
        trainer.step(batch)
        temperature *= 0.99
        pace(trainer)
"""


def test_a_number_that_a_joiner_has_not_kept_is_named(backend: LocalBackend, tmp_path: Path) -> None:
    calm = Driven(backend, tmp_path / "calm", ANNEALED).run(2)
    assert "temperature" not in calm.err()
    finished = Driven(backend, tmp_path / "disturbed", ANNEALED).run(2, [(3, to(3))])
    assert finished.outcome.code == 0, finished.failure
    assert "loss_fn reads 'temperature'" in finished.err()
    assert "vf.State(temperature=...)" in finished.err()


def test_workers_that_remember_other_changes_still_make_the_same_calls(
    backend: LocalBackend, cpus: LocalBackend, tmp_path: Path
) -> None:
    # A worker that is lost while a group forms may have joined for some of the others, and never for the rest.
    forgetful = TRAIN.replace("        pace(trainer)", FORGET + "        pace(trainer)") + "print(trainer.digest())\n"
    forgetful = f"import dataclasses\nfrom virtualflow.train import solo\n{forgetful}"
    calm = Driven(cpus, tmp_path / "calm", TRAIN + "print(trainer.digest())\n").run()
    assert_same(calm, Driven(backend, tmp_path / "grown", forgetful).run(2, [(3, to(3))]))


FORGET = """        if (member := solo.installed()).device == "1":
            member.changes[:] = [dataclasses.replace(change, joined=()) for change in member.changes]
"""


LARGE = """
import torch, virtualflow as vf
from torch import nn
from tests.train.small import classes, cross
from virtualflow.testing import kill_at
from virtualflow.train import solo

strikes = {"0": "send state", "2": "receive state"}
if (device := solo.installed().device) in strikes and not (folder / device).exists():
    kill_at(strikes[device], 1, folder / device)

vf.seed(0)
where = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(6, 600), nn.Tanh(), nn.Linear(600, 600), nn.Tanh(), nn.Linear(600, 3))
noise, scaler = torch.Generator(where).manual_seed(7), torch.amp.GradScaler(where, init_scale=64.0, growth_interval=5)
trainer = vf.Trainer(
    model, torch.optim.Adam(model.parameters()), cross, batch_size=8, virtual_nodes=4, grad_scaler=scaler, state=[noise]
)
for _ in trainer.epochs(6):
    for batch in trainer.batches(classes()):
        trainer.step(batch)
        drawn = torch.rand(3, generator=noise, device=where).tolist()
        pace(trainer)
print(drawn, scaler.get_scale(), trainer.digest())
"""


def test_large_tensors_scalers_and_generators_move_though_sender_and_receiver_are_killed(
    backend: LocalBackend, cpus: LocalBackend, tmp_path: Path
) -> None:
    """Tensors beyond a mebibyte go from device to device."""
    calm = Driven(cpus, tmp_path / "calm", LARGE).run()
    disturbed = Driven(backend, tmp_path / "disturbed", LARGE)
    finished = disturbed.run(2, [(3, to(3)), (6, lambda _: (disturbed.folder / "2").exists())])
    assert_same(calm, finished)
    assert (disturbed.folder / "0").exists()
