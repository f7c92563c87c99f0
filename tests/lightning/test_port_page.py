"""The diffs of docs/how-to/port-lightning.md, applied: what they lead to runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.test_commands import ROOT, blocks

pytest.importorskip("lightning", reason="needs lightning, which the extra [lightning] installs")
pytest.importorskip("accelerate", reason="needs accelerate")
PAGE = ROOT / "docs" / "how-to" / "port-lightning.md"
DIFFS = [text for language, text in blocks(PAGE) if language == "diff"]


@pytest.mark.parametrize("diff", DIFFS, ids=["lightning", "fabric", "accelerate"])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_ported_script_runs(
    diff: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ported = "\n".join(line[1:] for line in diff.splitlines() if not line.startswith("-"))
    exec(compile(ported, "ported.py", "exec"), {"__name__": "__main__"})
    assert "done" in capsys.readouterr().out or (tmp_path / "lightning_logs").exists()


@pytest.mark.parametrize("diff", DIFFS, ids=["lightning", "fabric", "accelerate"])
def test_the_script_before_is_one(diff: str) -> None:
    compile("\n".join(line[1:] for line in diff.splitlines() if not line.startswith("+")), "before.py", "exec")
