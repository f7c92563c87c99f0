"""Hugging Face's models as stages: the whole model's logits, and the same bits on other devices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from tests.conftest import Launcher
from tests.stages.test_same_bits_with_stages import assert_same_bits
from tests.transformers.staged_job import MAKE
from virtualflow.errors import ConfigError
from virtualflow.transformers.hf_stages import hf_stages

JOB = Path(__file__).with_name("staged_job.py")


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("cuts", [(0,), (0, 1), (0, 1, 3)])
def test_stages_give_the_logits_of_the_whole_model(kind: str, cuts: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    whole: Any = MAKE[kind]()
    stages = hf_stages(MAKE[kind], cuts=cuts)
    batch = {"input_ids": torch.randint(0, 64, (2, 9)), "attention_mask": torch.ones(2, 9, dtype=torch.long)}
    batch["attention_mask"][1, :3] = 0
    body = "model" if kind == "llama" else "transformer"
    mine = whole.state_dict()
    x = None
    for build in stages:
        stage = build().eval()
        names = {name: name.replace("body.", f"{body}.").replace("head.", "lm_head.") for name in stage.state_dict()}
        stage.load_state_dict({name: mine[there] for name, there in names.items()})
        x = stage(x, batch)
    assert torch.equal(x, whole.eval()(**batch, use_cache=False).logits)


def test_weights_that_are_shared_are_known() -> None:
    assert hf_stages(MAKE["gpt2"], cuts=(0, 2)).tied == {"1.head.weight": "0.body.wte.weight"}
    assert hf_stages(MAKE["llama"], cuts=(0, 2)).tied == {}


def test_what_it_can_not_cut_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="below 4"):
        hf_stages(MAKE["llama"], cuts=(0, 4))
    with pytest.raises(ConfigError, match="not 'Linear'"):
        hf_stages(lambda: torch.nn.Linear(1, 1), cuts=(0,))


@pytest.mark.parametrize("kind", MAKE)
def test_bits_do_not_depend_on_the_devices(run_job: Launcher, kind: str) -> None:
    one, two = (run_job(JOB, devices, [json.dumps({"kind": kind})]) for devices in (1, 2))
    for finished in (one, two):
        assert finished.outcome.code == 0, finished.failure + finished.err()
    assert_same_bits(one, two)
