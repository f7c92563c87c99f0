"""``vf tensorboard``: read back as TensorBoard reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_run import vf
from virtualflow.events import STREAM, Evaluated, EventLog, Regrouped, StepDone
from virtualflow.job.folder import JobFolder

pytestmark = pytest.mark.timeout(400)  # a busy machine decides nothing


def test_scalars_come_by_step(vf_home: Path, tmp_path: Path) -> None:
    records = pytest.importorskip("tensorboardX.proto.event_pb2")
    folder = JobFolder(vf_home / "jobs" / "job")
    folder.path.mkdir(parents=True)
    (folder.path / "job.json").write_text(json.dumps({}))
    log = EventLog(folder.path / STREAM, lambda: True)
    for step in range(3):
        log.write(StepDone(step, 0, 1.5 - step, "", None, "", "", examples=8, seconds=0.5, attempts=1))
    log.write(Regrouped(1, 2, "resize", ["0", "1"], ["1"], [], ["0", "1"], {"form group": 20.0, "move state": 5.0}))
    log.write(Evaluated(3, 0.75, "accuracy"))
    done = vf("tensorboard", "job", "-o", str(tmp_path / "board"))
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "board" / "job").iterdir()
    result = [
        (value.tag, event.step, value.simple_value)
        for event in map(records.Event.FromString, _frames(file.read_bytes()))
        for value in event.summary.value
    ]
    assert result == [
        *[
            (name, step, value)
            for step in range(3)
            for name, value in (("loss", 1.5 - step), ("examples_per_second", 16))
        ],
        ("devices", 2, 2),
        ("pause_in_ms", 2, 25),
        ("accuracy", 3, 0.75),
    ]


def _frames(data: bytes) -> list[bytes]:
    """The records of a file: length, its checksum, contents, their checksum."""
    frames = []
    while data:
        size = int.from_bytes(data[:8], "little")
        frames.append(data[12 : 12 + size])
        data = data[16 + size :]
    return frames
