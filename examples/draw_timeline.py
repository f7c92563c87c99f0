"""``python examples/draw_timeline.py [FILE]``: the timeline of a job that shrinks, grows and loses a worker.

The devices are emulated: each virtual node waits as long as a V100 computes, so that throughput follows the number of
devices on a machine with few cores, too.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TIME_SCALE = 2.0  # longer waits than a real V100, so that a busy machine does not show
SCRIPT = """
import torch, virtualflow as vf

vf.seed(0)
data = torch.utils.data.TensorDataset(torch.randn(4096, 16), torch.randn(4096, 1))
model = torch.nn.Linear(16, 1)
trainer = vf.Trainer(
    model, torch.optim.SGD(model.parameters(), lr=0.01),
    lambda model, batch: torch.nn.functional.mse_loss(model(batch[0]), batch[1]), batch_size=96, virtual_nodes=12,
)
for epoch in trainer.epochs(1000):
    for batch in trainer.batches(data):
        trainer.step(batch)
"""


def vf(*words: str) -> str:
    command = [sys.executable, "-m", "virtualflow", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"vf {' '.join(words)}: {done.stderr}")
    return done.stdout


def status(job: str) -> dict[str, object]:
    found = json.loads(vf("status", job, "--json"))
    return dict(found[0] if isinstance(found, list) else found)


def after_steps(job: str, steps: int) -> None:
    """Return when the job has made *steps* more."""
    goal = int(str(status(job)["step"])) + steps
    while int(str(status(job)["step"])) < goal:
        time.sleep(0.2)


def main() -> None:
    picture = Path(sys.argv[1] if len(sys.argv) > 1 else "timeline.png").absolute()
    with tempfile.TemporaryDirectory() as name:
        os.environ["VF_HOME"] = name
        script = Path(name) / "train.py"
        script.write_text(SCRIPT)
        emulated = ("--emulate", "bert-base", "--time-scale", str(TIME_SCALE))
        job = vf("run", "--detach", "--devices", "V100:4", *emulated, str(script)).split()[1]
        try:
            while status(job)["state"] != "RUNNING" or not status(job)["step"]:
                time.sleep(0.2)
            after_steps(job, 40)
            vf("resize", "--wait", job, "2")
            after_steps(job, 40)
            vf("resize", "--wait", job, "4")
            after_steps(job, 40)
            workers = status(job)["workers"]
            assert isinstance(workers, list)
            os.kill(workers[-1]["pid"], signal.SIGKILL)
            after_steps(job, 40)  # on three devices at first; then a replacement joins
        finally:
            vf("stop", job)
        vf("timeline", job, "-o", str(picture))
    print(picture)


if __name__ == "__main__":
    main()
