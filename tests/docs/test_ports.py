"""The guides for porting: each diff applies to the script that it is about, and what comes out gives the same bits."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_commands import ROOT, blocks
from virtualflow.porting.advice import Severity
from virtualflow.porting.rules import advise

GUIDES = ROOT / "docs" / "how-to"
PORTS = ROOT / "examples" / "ports"
pytestmark = pytest.mark.timeout(600)


def block(guide: str, language: str) -> str:
    (text,) = (text for result, text in blocks(GUIDES / guide) if result == language)
    return text


def patched(script: str, diff: str) -> str:
    """*script* after *diff*, whose parts begin with ``@@`` and are found by their lines, each in one place only."""
    for part in re.split(r"^@@.*\n", diff, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        assert all(line[:1] in (" ", "-", "+") for line in lines if line), part
        old, new = ("".join(f"{line[1:]}\n" for line in lines if line[:1] != other) for other in "+-")
        assert f"\n{script}".count(f"\n{old}") == 1, old
        script = f"\n{script}".replace(f"\n{old}", f"\n{new}", 1)[1:]
    return script


def run(*command: object, folder: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env=os.environ | {"VF_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("guide", ["port-ddp.md", "port-accelerate.md"])
def test_a_guides_diff_makes_a_script_with_the_same_bits_on_one_and_two_devices(guide: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(patched(block(guide, "py"), block(guide, "diff")))
    digests = [
        re.findall(r"^digest (\w{64})$", run(*command, script, folder=tmp_path), re.MULTILINE)
        for command in ((), ("-m", "virtualflow.cli.main", "run", "--devices", 2))
    ]
    assert digests[0] == digests[1]
    assert len(digests[0]) == 1
    left = advise(script.read_bytes(), "train.py")
    assert [advice for advice in left if advice.severity is not Severity.CHECK] == []


def test_the_ddp_script_is_one(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(block("port-ddp.md", "py"))
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    assert "epoch 3  loss" in run("train.py", folder=tmp_path, **alone)


def test_the_accelerate_script_is_one(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed here")
    (tmp_path / "train.py").write_text(block("port-accelerate.md", "py"))
    assert "epoch 1  accuracy" in run("train.py", folder=tmp_path, ACCELERATE_USE_CPU="true")


def test_the_nanogpt_diff_leads_from_the_plain_example_to_its_port() -> None:
    """What that gives on one device and on two is tested with the examples."""
    plain, port = ((PORTS / f"gpt_{kind}.py").read_text() for kind in ("plain", "vf"))
    assert patched(plain, block("port-nanogpt.md", "diff")) == port


NAMED = {
    "port-ddp.md": (
        "init_process_group",
        "get_rank",
        "manual_seed",
        "DistributedSampler(",
        "world_size",
        "DistributedDataParallel(",
        "StepLR(",
        "best = float",
        "range(4)",
        "set_epoch",
        "for x, y",
        "zero_grad",
        ".backward()",
        "clip_grad_norm_",
        "optimizer.step()",
        "all_reduce",
        "rank == 0",
        "torch.save",
        "destroy_process_group",
    ),
    "port-accelerate.md": (
        "set_seed(",
        "Accelerator(",
        "DataLoader(",
        "CosineAnnealingLR(",
        "accelerator.prepare",
        "range(2)",
        "for x, y",
        ".accumulate(",
        ".backward(",
        "sync_gradients",
        "clip_grad_norm_",
        "optimizer.step()",
        "zero_grad",
        "gather_for_metrics",
        "accelerator.print",
        "wait_for_everyone",
        "save_state",
    ),
}


@pytest.mark.parametrize("guide", NAMED)
def test_vf_port_names_the_lines_that_a_guide_takes_out(guide: str) -> None:
    script = block(guide, "py").splitlines()
    named = {advice.line for advice in advise("\n".join(script).encode(), "train.py")}
    for words in NAMED[guide]:
        lines = {number for number, line in enumerate(script, 1) if words in line and "import" not in line}
        assert lines, words
        assert lines <= named, words
