"""A job's description: one value that is written, read again and changed with the launch around it."""

from __future__ import annotations

from pathlib import Path

import pytest

from virtualflow.core.job_description import JobDescription
from virtualflow.errors import DamagedError
from virtualflow.job.folder import JobFolder, JobSpec


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    spec = JobSpec.of(
        "a", "train.py", ["\udc80"], ["0", "1"], owners=(0, 1), emulated={"0": {"points": [[8, 0.1]]}}, managed=True
    )
    folder = JobFolder(tmp_path / "a")
    folder.make()
    folder.change(spec)
    assert folder.spec() == spec


def test_options_reach_the_description_or_the_launch_by_their_name() -> None:
    spec = JobSpec.of("a", "train.py", (), ("0",), checkpoint_every=5, patience_seconds=2.0)
    changed = spec.changed(checkpoint_every=7, devices=("1",))
    assert (spec.description.checkpoint_every, spec.patience_seconds) == (5, 2.0)
    assert changed.description == JobDescription("train.py", checkpoint_every=7, hash_seed=spec.description.hash_seed)
    assert (changed.devices, changed.patience_seconds) == (("1",), 2.0)
    with pytest.raises(TypeError, match="no_such_option"):
        spec.changed(no_such_option=1)


def test_a_spec_with_a_wrong_type_is_damaged_and_says_where(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    (tmp_path / "job.json").write_text('{"job_id": "a", "description": {"script": 3}, "devices": []}')
    with pytest.raises(DamagedError, match=r"\$\.description\.script"):
        folder.spec()
