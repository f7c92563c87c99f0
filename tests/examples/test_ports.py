"""Scripts as people have them, and their ports: how much changes, and the same bits on one device and two."""

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from virtualflow.porting.rules import advise

pytestmark = pytest.mark.timeout(600)

PORTS = Path(__file__).parents[2] / "examples" / "ports"
SMALL = {
    "mnist": ["--epochs", "2", "--examples", "256", "--log-interval", "2"],
    "gpt": ["--max-steps", "4", "--eval-interval", "2", "--eval-batches", "1", "--layers", "1", "--width", "16"],
    "glue": ["--examples", "72", "--max-length", "12"],
}
ALL_PLAIN = """
import runpy, sys
for script, *options in {calls!r}:
    sys.argv = [script, *options]
    runpy.run_path(script, run_name="__main__")
"""


@pytest.mark.usefixtures("reviews")
def test_the_plain_scripts_run(tmp_path):
    calls = [[str(PORTS / f"{name}_plain.py"), *options] for name, options in SMALL.items()]
    # In one process: what takes longest is to import torch.
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(PORTS)!r})" + ALL_PLAIN.format(calls=calls)]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    assert [word in done.stdout for word in ("test  loss", "step 2  train", "epoch 1  loss")] == [True] * 3


@pytest.mark.parametrize("name", SMALL)
def test_a_port_gives_the_same_bits_on_one_and_two_devices(name, python, vf_run, digest, request):
    if name == "glue":
        request.getfixturevalue("reviews")
    script = f"ports/{name}_vf.py"
    assert digest(python(script, *SMALL[name])) == digest(vf_run(2, script, *SMALL[name]))


@pytest.mark.parametrize("name", SMALL)
def test_the_number_of_changed_lines_is_the_one_that_is_stated(name):
    plain, port = ((PORTS / f"{name}_{kind}.py").read_text().splitlines() for kind in ("plain", "vf"))
    changes = list(difflib.unified_diff(plain, port, n=0, lineterm=""))[2:]
    new, gone = (sum(line.startswith(sign) and line[1:].strip() != "" for line in changes) for sign in "+-")
    (row,) = re.findall(rf"^\| \[{name}_plain.*\| (\d+) \| (\d+) \| (\d+) \|$", (PORTS / "README.md").read_text(), re.M)
    assert tuple(map(int, row)) == (len(plain), new, gone)


@pytest.mark.parametrize("name", SMALL)
def test_the_advice_on_a_plain_script_names_what_its_port_has(name):
    advice_text = "\n".join(advice.instead for advice in advise((PORTS / f"{name}_plain.py").read_bytes(), name))
    port = (PORTS / f"{name}_vf.py").read_text()
    for words in ("vf.seed(", "vf.Trainer(", "trainer.step(batch)", "clip_grad_norm=1.0", "state=[", "trainer.steps("):
        if words in port:
            assert words in advice_text
