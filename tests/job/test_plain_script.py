"""A script under plain python is a job that ``vf status`` and ``vf clean`` know."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from virtualflow.cli.main import app

pytestmark = pytest.mark.timeout(400)  # a busy machine decides nothing

TRAIN = """
import sys, torch, virtualflow as vf
from virtualflow.job.folder import all_jobs
vf.seed(0)
model = torch.nn.Linear(2, 1)
loss_fn = lambda m, b: (m(b[0]) ** 2).mean()
trainer = vf.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_fn, batch_size=4, virtual_nodes=2)
for _ in trainer.epochs(1):
    for batch in trainer.batches(torch.utils.data.TensorDataset(torch.ones(8, 2))):
        trainer.step(batch)
    print(all_jobs()[0].read_state().state, all_jobs()[0].is_locked())
if "fail" in sys.argv:
    raise ValueError("as it was told to")
"""


@pytest.mark.parametrize(("words", "state"), [((), "DONE"), (("fail",), "FAILED")])
def test_status_and_clean_know_a_plain_script(
    tmp_path: Path, vf_home: Path, words: tuple[str, ...], state: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    environment = os.environ | {"VF_HOME": str(vf_home)}
    ran = subprocess.run(
        [sys.executable, str(script), *words], capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert ran.stdout == "RUNNING True\n", ran.stderr
    (job,) = re.findall(r"^job (\S+)$", ran.stderr, re.M)
    (shown,) = json.loads(CliRunner().invoke(app, ["status", "--json"], catch_exceptions=False).stdout)
    assert (shown["id"], shown["state"], shown["step"]) == (job, state, 2)
    CliRunner().invoke(app, ["clean", "--yes", job], catch_exceptions=False)
    assert not (vf_home / "jobs" / job).exists()
