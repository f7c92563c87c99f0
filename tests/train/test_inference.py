"""evaluate and predict split over virtual nodes; no mapping changes a bit, outputs come in dataset order."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import virtualflow as vf
from tests.conftest import Launcher
from tests.train.small import accuracy, classes, cross, make, mlp, regression
from virtualflow.errors import ConfigError, LossError

pytestmark = pytest.mark.on_cuda_too

SCRIPT = Path(__file__).with_name("inference_job.py")


def test_results_do_not_depend_on_the_mapping(run_job: Launcher, run_on_cpus: Launcher) -> None:
    runs = [run_job(SCRIPT, devices, owners=owners) for devices, owners in ((3, None), (2, [1, 0, 1, 0]))]
    runs.append(run_on_cpus(SCRIPT, 1))
    assert len({run.digest for run in runs}) == 1
    assert all(run.out() == runs[0].out() for run in runs)


def test_predict_gives_outputs_in_dataset_order() -> None:
    vf.seed(0)
    model = mlp()
    trainer = make(model)
    data = regression(21)
    assert torch.allclose(trainer.predict(data), model.cpu()(data.tensors[0]).detach(), atol=1e-6)


def test_predict_takes_tuples_dicts_and_functions() -> None:
    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 2)

        def forward(self, inputs: Tensor) -> dict[str, object]:
            return {"a": inputs, "b": (self.linear(inputs), [inputs[:, 0]])}

    trainer = make(Several(), cross)
    outputs = trainer.predict(regression(10))
    assert torch.equal(outputs["a"], regression(10).tensors[0])
    assert outputs["b"][0].shape == (10, 2)
    rows = trainer.predict(regression(10), lambda model, batch: batch[1])
    assert torch.equal(rows, regression(10).tensors[1])


def test_predict_refuses_what_has_no_rows() -> None:
    trainer = make()
    with pytest.raises(LossError, match="count examples"):
        trainer.predict(regression(), lambda model, batch: torch.zeros(()))
    with pytest.raises(LossError, match="type str"):
        trainer.predict(regression(), lambda model, batch: "a")


def test_evaluate_weighs_every_example_the_same_and_leaves_no_trace() -> None:
    vf.seed(0)
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3))
    model[1].eval()
    trainer = make(model, cross, virtual_nodes=[5, 3])
    before = trainer.digest()
    value = trainer.evaluate(classes(29), accuracy)
    model.eval()
    correct, count = accuracy(model, [tensor.to(model[2].weight.device) for tensor in classes(29).tensors])
    assert value == float(correct) / count
    model.train()
    model[1].eval()
    trainer.evaluate(classes(29), accuracy)
    assert model.training
    assert not model[1].training
    assert trainer.digest() == before


def test_metrics_that_can_not_work_are_refused() -> None:
    trainer = make()
    with pytest.raises(LossError, match="total, weight"):
        trainer.evaluate(regression(), lambda model, batch: 0.5)
    with pytest.raises(LossError, match="add up to 0"):
        trainer.evaluate(regression(), lambda model, batch: (1.0, 0))
    with pytest.raises(ConfigError, match="length 0"):
        trainer.evaluate([], accuracy)


def test_predictions_padded_to_different_lengths_say_what_to_do() -> None:
    lengths = iter(range(1, 100))
    trainer = make()
    with pytest.raises(LossError, match=r"shape \(1,\) from one shard and \(2,\).*fixed length"):
        trainer.predict(regression(), lambda model, batch: torch.zeros(len(batch[0]), next(lengths)))
