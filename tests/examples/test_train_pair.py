"""Two scripts side by side: what changes when plain PyTorch becomes VirtualFlow."""

import difflib
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_one_and_two_devices_give_the_same_bits(python, vf_run, digest):
    assert digest(python("train_virtualflow.py")) == digest(vf_run(2, "train_virtualflow.py"))


def test_the_plain_script_runs_and_prints_the_same_kind_of_lines(python):
    plain = python("train_torch.py")
    assert plain.returncode == 0, plain.stderr
    assert "epoch 10  loss" in plain.stdout


def test_only_a_few_lines_are_new():
    plain, ours = ((EXAMPLES / name).read_text().splitlines() for name in ("train_torch.py", "train_virtualflow.py"))
    new = [line for line in difflib.ndiff(plain, ours) if line.startswith("+ ") and line[2:].strip()]
    assert len(new) <= 10, new
