"""``vf port`` as a user types it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.test_jobs import run_verb

SCRIPT = """import torch
torch.manual_seed(3)
loader = torch.utils.data.DataLoader(data, batch_size=16)
for batch in loader:
    optimizer.zero_grad()
    model(batch).backward()
    optimizer.step()
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    return Path("train.py")


def test_each_line_is_shown_with_what_to_write_instead(script: Path) -> None:
    code, text = run_verb("port", str(script))
    assert code == 0
    assert "line 2  torch.manual_seed(3)\n  change  `vf.seed(3)`" in text
    assert "vf.Trainer(model, optimizer, loss_fn, batch_size=16, virtual_nodes=8)" in text
    assert "as for line 5" in text  # said once
    assert "train.py: 5 x change, 1 x check" in text
    assert "vf run --audit --devices 2 train.py" in text
    assert script.read_text() == SCRIPT


def test_json_has_the_same(script: Path) -> None:
    code, text = run_verb("port", str(script), "--json")
    report = json.loads(text)
    assert (code, report["script"]) == (0, "train.py")
    assert [advice["line"] for advice in report["advice"]] == [2, 3, 4, 5, 6, 7]
    assert report["advice"][0].keys() == {"line", "seen", "instead", "severity"}
    assert report["advice"][0]["severity"] == "change"


def test_a_script_with_nothing_to_say_is_told_so(script: Path) -> None:
    script.write_text("print(1)\n")
    code, text = run_verb("port", str(script))
    assert code == 0
    assert "nothing that would have to change" in text


def test_what_cannot_be_read_is_an_error_that_says_so(script: Path) -> None:
    Path("broken.py").write_text("for\n")
    os.mkfifo("pipe.py")
    assert run_verb("port", "broken.py")[0] == 2
    assert "broken.py, line 1, can't be read as Python: invalid syntax" in run_verb("port", "broken.py")[1]
    assert "no regular file" in run_verb("port", "pipe.py")[1]
    assert "is a folder" in run_verb("port", ".")[1]
    assert run_verb("port", "missing.py")[0] == 2
    assert "missing.py: No such file" in run_verb("port", "missing.py")[1]


def test_escape_sequences_of_a_script_do_not_reach_the_terminal(script: Path) -> None:
    script.write_text("import torch\ntorch.manual_seed(0)  # \x1b[31m\n")
    assert "\x1b" not in run_verb("port", str(script))[1]
