"""What the Lightning strategy promises, refuses and leaves to Lightning, in one process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

L = pytest.importorskip("lightning", reason="needs lightning, which the extra [lightning] installs")

import torch  # noqa: E402
from lightning.fabric import Fabric  # noqa: E402
from lightning.pytorch.callbacks import (  # noqa: E402
    EarlyStopping,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from torch.utils.data import DataLoader  # noqa: E402

import virtualflow as vf  # noqa: E402
from tests.lightning.small import Counting, Small, trainer, training, validation  # noqa: E402
from tests.lightning.wrapped import digest_of  # noqa: E402
from tests.train.small import regression  # noqa: E402
from virtualflow.errors import ConfigError, HiddenStateError  # noqa: E402
from virtualflow.lightning import VirtualFlowFabricStrategy, VirtualFlowStrategy  # noqa: E402
from virtualflow.train.data import length_of  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"),
]


def fitted(folder: Path, model: Any = None, *callbacks: Any, fit: Any = (), **options: Any) -> tuple[Any, Any]:
    """The Lightning trainer after its fit, and the strategy."""
    strategy = VirtualFlowStrategy(**{"virtual_nodes": 4} | options.pop("strategy", {}))
    options = {"max_epochs": 2, "logger": False, "enable_checkpointing": False} | options
    vf.seed(0)
    model = Small() if model is None else model
    loop = trainer(folder, strategy, *callbacks, **options)
    loop.fit(model, training(), validation(), **dict(fit))
    return loop, strategy


def test_what_is_logged_is_that_of_the_global_batch(tmp_path: Path) -> None:
    loop, strategy = fitted(tmp_path)
    metrics = {name: float(value) for name, value in loop.callback_metrics.items()}
    assert metrics["seen"] == 44
    assert metrics["batches"] == 3
    model, data = loop.lightning_module.eval(), regression(20)
    expected = torch.nn.functional.mse_loss(model.net(data.tensors[0]), data.tensors[1])
    assert metrics["val_loss"] == pytest.approx(float(expected))
    assert loop.global_step == strategy.engine.global_step == 12


def test_validation_that_is_not_shared_gives_the_same(tmp_path: Path) -> None:
    digests, outputs = set(), set()
    for share in (True, False):
        counting = Counting()
        loop, strategy = fitted(tmp_path, None, counting, strategy={"share_validation": share})
        digests.add((strategy.engine.digest(), float(loop.callback_metrics["val_loss"])))
        outputs.add(tuple(counting.outputs))
        assert counting.batches == 12
    assert len(digests) == 1
    assert len(outputs) == 1


@pytest.mark.parametrize(
    "every", [{"every_n_train_steps": 9}, {"every_n_epochs": 1}], ids=["in an epoch", "at its end"]
)
def test_a_checkpoint_of_lightnings_resumes_with_the_same_bits(tmp_path: Path, every: dict[str, int]) -> None:
    saving = ModelCheckpoint(tmp_path / "kept", "{step}", save_top_k=-1, **every)
    _, whole = fitted(tmp_path, None, saving, max_epochs=3, enable_checkpointing=True)
    path = tmp_path / "kept" / ("step=9.ckpt" if "every_n_train_steps" in every else "step=12.ckpt")
    loop, resumed = fitted(tmp_path, None, max_epochs=3, fit={"ckpt_path": path})
    assert loop.global_step == 18
    assert resumed.engine.digest() == whole.engine.digest()


def test_early_stopping_stops(tmp_path: Path) -> None:
    stopping = EarlyStopping("val_loss", patience=1, mode="max", min_delta=1e9)
    loop, strategy = fitted(tmp_path, None, stopping, max_epochs=9)
    assert loop.current_epoch == 2
    assert strategy.engine.global_step == 12


def test_limits_and_steps_end_a_fit_where_they_say(tmp_path: Path) -> None:
    assert fitted(tmp_path, max_epochs=2, limit_train_batches=2, limit_val_batches=1)[0].global_step == 4
    assert fitted(tmp_path, max_epochs=-1, max_steps=8)[0].global_step == 8


def test_precision_is_lightnings(tmp_path: Path) -> None:
    digests = {fitted(tmp_path, precision=precision)[1].engine.digest() for precision in ("32-true", "bf16-mixed")}
    assert len(digests) == 2


def test_hooks_for_batches_get_the_parts(tmp_path: Path) -> None:
    class Halved(Small):
        def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return [batch[0] / 2, batch[1]]

    assert fitted(tmp_path, Halved())[1].engine.digest() != fitted(tmp_path)[1].engine.digest()


class Manual(Small):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


@pytest.mark.parametrize(
    ("name", "model", "options"),
    [
        ("automatic_optimization=False", Manual, {}),
        ("accumulate_grad_batches", Small, {"accumulate_grad_batches": 2}),
        ("devices", Small, {"devices": 2}),
        ("sync_batchnorm", Small, {"sync_batchnorm": True}),
        ("val_check_interval", Small, {"val_check_interval": "00:00:01:00"}),
        ("the callback Timer", Small, {"max_time": "00:01:00:00"}),
        ("the callback StochasticWeightAveraging", Small, {"callbacks": [StochasticWeightAveraging(0.1)]}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_can_not_hold_is_refused_by_name(tmp_path: Path, name: str, model: Any, options: dict[str, Any]) -> None:
    vf.seed(0)
    callbacks = options.pop("callbacks", [])
    strategy = VirtualFlowStrategy(virtual_nodes=4)
    loop = trainer(tmp_path, strategy, *callbacks, **{"max_epochs": 1, "logger": False} | options)
    with pytest.raises(ConfigError, match=re.escape(name)):
        loop.fit(model(), training(), validation())
    assert strategy.engine is None


def test_several_training_loaders_are_refused(tmp_path: Path) -> None:
    loop = trainer(tmp_path, VirtualFlowStrategy(virtual_nodes=4), max_epochs=1, logger=False)
    with pytest.raises(ConfigError, match="one DataLoader, and got a dict"):
        loop.fit(Small(), {"a": training(), "b": training()})


def test_a_validation_loader_that_shuffles_is_refused(tmp_path: Path) -> None:
    loop = trainer(tmp_path, VirtualFlowStrategy(virtual_nodes=4), max_epochs=1, logger=False)
    with pytest.raises(ConfigError, match="share_validation=False"):
        loop.fit(Small(), training(), DataLoader(regression(), 4, shuffle=True))


class KeepsOutputs(Small):
    def __init__(self) -> None:
        super().__init__()
        self.outputs: list[Any] = []

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().validation_step(batch, batch_idx)
        self.outputs.append(loss)
        return loss


class CountsSteps(Small):
    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.steps += 1
        return super().training_step(batch, batch_idx)


def test_steps_that_keep_something_of_their_part_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HiddenStateError, match=r"validation_step keeps something in self\.outputs"):
        fitted(tmp_path, KeepsOutputs())
    with pytest.raises(HiddenStateError, match=r"training_step keeps something in self\.steps"):
        fitted(tmp_path, CountsSteps())
    kept = KeepsOutputs()
    fitted(tmp_path, kept, strategy={"share_validation": False})
    assert len(kept.outputs) == 2 + 2 * 4


class Measured(Small):
    """Logs a metric object of torchmetrics in the step *where*."""

    def __init__(self, where: str) -> None:
        from torchmetrics import MeanMetric

        super().__init__()
        self.mean = MeanMetric()
        self.where = where

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.where == "training_step":
            self.log("mean", self.mean)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().validation_step(batch, batch_idx)
        if self.where == "validation_step":
            self.mean(loss, len(batch[0]))
            self.log("mean", self.mean)
        return loss


@pytest.mark.parametrize(("where", "advice"), [("training_step", "in a hook"), ("validation_step", "share_validation")])
def test_metric_objects_are_refused_before_anything_is_trained(tmp_path: Path, where: str, advice: str) -> None:
    model = Measured(where)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(ConfigError, match=rf"self\.log\('mean', \.\.\.\) in {where} got a MeanMetric.*{advice}"):
        fitted(tmp_path, model)
    assert all(map(torch.equal, before, model.parameters()))


def test_metric_objects_may_count_a_validation_that_is_not_shared(tmp_path: Path) -> None:
    loop, _ = fitted(tmp_path, Measured("validation_step"), strategy={"share_validation": False})
    assert float(loop.callback_metrics["mean"]) == pytest.approx(float(loop.callback_metrics["val_loss"]))


@pytest.mark.parametrize("kind", ["fabric", "accelerate"])
def test_wrapped_models_train_to_the_bits_of_plain_ones(kind: str) -> None:
    pytest.importorskip(kind.replace("fabric", "lightning"), reason=f"needs {kind}")
    assert digest_of(kind) == digest_of("plain")


def test_accumulation_by_accelerate_is_refused() -> None:
    pytest.importorskip("accelerate", reason="needs accelerate")
    from virtualflow.accelerate import Accelerator

    with pytest.raises(ConfigError, match="gradient_accumulation_steps"):
        Accelerator(cpu=True, gradient_accumulation_steps=2)


def test_a_loader_that_fabric_has_wrapped_is_refused_with_what_to_do() -> None:
    loader = Fabric(accelerator="cpu", strategy=VirtualFlowFabricStrategy()).setup_dataloaders(training())
    with pytest.raises(ConfigError, match=r"setup_dataloaders returns\. Leave that call out"):
        length_of(loader, "batches")
