"""Lightning, Fabric and accelerate in real jobs: the same bits through growth and the death of the lead."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Finished
from tests.job.driven import Driven, after_a_loss, to
from tests.job.test_other_loops import kill_the_lead, trained
from tests.lightning.wrapped import digest_of
from virtualflow.backends.local import LocalBackend

pytest.importorskip("lightning", reason="needs lightning, which the extra [lightning] installs")
pytestmark = pytest.mark.timeout(300)  # every worker imports lightning

WAIT = """
def wait(step):  # imports take a worker that joins seconds
    if (folder / "slow").exists():
        time.sleep(0.02 * 1.1**step)
"""

LIGHTNING = """
import lightning as L, virtualflow as vf
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger
from tests.lightning.small import Counting, Small, trainer, training, validation
from virtualflow.lightning import VirtualFlowStrategy

class Pace(L.Callback):
    def on_train_batch_end(self, trainer, *_):
        wait(trainer.global_step)

class Data(L.LightningDataModule):
    def prepare_data(self):  # on one worker, and the others wait
        time.sleep(0.5)
        (folder / "data").touch()

    def setup(self, stage):
        assert (folder / "data").exists()
        self.train_dataloader, self.val_dataloader = training, validation

vf.seed(0)
model, counting, strategy = Small(), Counting(), VirtualFlowStrategy(virtual_nodes=4)
best = ModelCheckpoint(monitor="val_loss", save_top_k=2, save_last=True)
stopping = EarlyStopping("train_loss_epoch", patience=9, check_on_train_epoch_end=True)
fit = trainer(folder, strategy, Pace(), counting, best, stopping, max_epochs=10, gradient_clip_val=1.0,
              val_check_interval=3, logger=CSVLogger(folder), enable_progress_bar=True)
fit.fit(model, datamodule=Data())
metrics = {name: float(value) for name, value in sorted(fit.callback_metrics.items())}
if fit.is_global_zero:
    names = [best.best_model_path.split("/")[-1], *sorted(path.split("/")[-1] for path in best.best_k_models)]
    kept = (counting.batches, sum(counting.outputs), float(counting._average))
    print("result", metrics, kept, names, strategy.engine.digest())
"""

KILLS = """
from virtualflow.testing import kill_at
from virtualflow.train import solo

for point, hit, device in (("save", 2, "0"), ("evaluate", 7, "1")):
    if solo.current().device == device and not solo.current().joining:
        kill_at(point, hit, folder / f"killed-{point}")
"""

WRAPPED = """
import torch, virtualflow as vf
from tests.lightning.wrapped import KINDS

vf.seed(0)
model, optimizer, data, backward, is_main = KINDS["a kind"]()
trainer = vf.Trainer(model, optimizer, lambda m, b: torch.nn.functional.mse_loss(m(b[0]), b[1]), batch_size=8,
                     virtual_nodes=4, backward=backward)
for epoch in trainer.epochs(10):
    for batch in trainer.batches(data):
        trainer.step(batch)
        assert is_main() == trainer.is_lead
        wait(trainer.global_step)
if is_main():
    print("result", trainer.digest())
"""


def results(printed: dict[str, bytes]) -> set[str]:
    return {line for text in printed.values() for line in re.findall(r"result .*", text.decode())}


@pytest.fixture(scope="module")
def backend() -> Iterator[LocalBackend]:
    """One that has loaded what each worker of these jobs needs."""
    with LocalBackend(preload=["lightning", "accelerate"]) as own:
        yield own


@pytest.fixture(scope="module")
def calm(backend: LocalBackend, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    finished = Driven(backend, tmp_path_factory.mktemp("calm"), WAIT + LIGHTNING).run(1)
    assert finished.outcome.code == 0, finished.failure
    assert len(results(finished.printed.text)) == 1
    return finished


def saved(job: Finished) -> list[str]:
    return sorted(path.name for path in job.folder.parent.rglob("*.ckpt"))


def test_lightning_through_growth_and_the_death_of_the_lead(
    calm: Finished, backend: LocalBackend, tmp_path: Path
) -> None:
    finished = Driven(backend, tmp_path, WAIT + LIGHTNING).run(
        2, [(7, to(3)), (9, kill_the_lead), (11, after_a_loss(to(2)))]
    )
    assert finished.outcome.code == 0, finished.failure
    assert trained(finished) == trained(calm)
    assert {change.cause for change in finished.changes} == {"resize", "loss"}
    assert results(finished.printed.text) == results(calm.printed.text)
    assert saved(finished) == saved(calm)
    shown = [text.decode() for text in finished.printed.text.values()]
    assert any(re.search(r"Epoch 9/9 .* 6/6 .*\nresult", text) for text in shown)  # the last lead, too, has a bar
    assert not any("had changed by then" in text for text in shown)  # what Lightning counts is not lost
    (table,) = tmp_path.rglob("metrics.csv")  # one run, whoever led
    assert list(csv.DictReader(table.read_text().splitlines()))[-1]["step"] == "59"


def test_the_death_of_one_lead_in_a_save_and_of_the_next_in_a_validation(
    calm: Finished, backend: LocalBackend, tmp_path: Path
) -> None:
    script = LIGHTNING.replace("Pace(), c", "TQDMProgressBar(), Pace(), c")
    finished = Driven(backend, tmp_path, WAIT + KILLS + script).run(3)
    assert finished.outcome.code == 0, finished.failure
    assert {path.name for path in tmp_path.glob("killed-*")} == {"killed-save", "killed-evaluate"}
    assert results(finished.printed.text) == results(calm.printed.text)
    assert saved(finished) == saved(calm)
    assert "Epoch 9: 100%" in finished.out("2")  # the last lead, too, has a progress bar


@pytest.mark.parametrize("kind", ["fabric", "accelerate"])
def test_wrapped_models_through_growth_and_the_death_of_the_lead(
    kind: str, backend: LocalBackend, tmp_path: Path
) -> None:
    pytest.importorskip(kind.replace("fabric", "lightning"), reason=f"needs {kind}")
    driven = Driven(backend, tmp_path, WAIT + WRAPPED.replace("a kind", kind))
    finished = driven.run(2, [(4, to(3)), (6, kill_the_lead)])
    assert finished.outcome.code == 0, finished.failure
    assert {change.cause for change in finished.changes} == {"resize", "loss"}
    assert results(finished.printed.text) == {f"result {digest_of('plain', epochs=10)}"}
