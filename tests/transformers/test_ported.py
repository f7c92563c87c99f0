"""The diff that the documentation shows is all that a script needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.docs.test_commands import ROOT, blocks
from virtualflow.transformers import Trainer

PAGE = ROOT / "docs" / "how-to" / "port-transformers.md"
pytestmark = pytest.mark.filterwarnings("ignore:.pin_memory. argument is set as true")  # a GPU could use it


def ran(kept: str) -> Any:
    """What the script leaves behind that has the lines of the page's diff that begin with one of *kept*."""
    (diff,) = [text for language, text in blocks(PAGE) if language == "diff"]
    names: dict[str, Any] = {}
    exec("\n".join(line[1:] for line in diff.splitlines() if line[:1] in kept), names)
    return names["trainer"]


def test_the_script_runs_before_and_after_its_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    plain = ran(" -")
    assert type(plain) is transformers.Trainer
    first, second = ran(" +"), ran(" +")
    assert type(first) is type(second) is Trainer
    assert first.digest() == second.digest()
    assert plain.state.global_step == first.state.global_step == 8
    assert (tmp_path / "trained" / "model.safetensors").exists()
