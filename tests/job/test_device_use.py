"""What workers use of their machines: measured, passed on, written and shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.job.test_coordinator import Job, finish
from virtualflow.core.job_view import DeviceUse
from virtualflow.job.device_use import FILE, WRITE_SECONDS, UseReader, UseRecorder
from virtualflow.job.folder_view import FolderView
from virtualflow.job.wire_messages import ResourceUse
from virtualflow.system.usage import CpuMeter, resident_bytes
from virtualflow.testing import FakeBackend

BUSY = DeviceUse(0.97, 400 << 20)
ON_CUDA = DeviceUse(0.5, 1 << 30, 3 << 30)


def test_a_process_measures_itself() -> None:
    meter = CpuMeter()
    sum(number * number for number in range(200_000))
    assert meter.cores() > 0
    assert resident_bytes() > 1 << 20


def test_what_is_written_is_read(tmp_path: Path) -> None:
    recorder, reader = UseRecorder(tmp_path), UseReader(tmp_path)
    assert reader.read() == {}
    recorder.note("0", BUSY)
    recorder.note("1", ON_CUDA)
    recorder.write(["0", "1"], now=0.0)
    assert reader.read() == {"0": BUSY, "1": ON_CUDA}


def test_reports_are_written_once_a_second_and_only_of_devices_that_are_there(tmp_path: Path) -> None:
    recorder, reader = UseRecorder(tmp_path), UseReader(tmp_path)
    recorder.note("0", BUSY)
    recorder.note("1", BUSY)
    recorder.write(["0", "1"], now=0.0)
    recorder.note("0", ON_CUDA)
    recorder.write(["0"], now=WRITE_SECONDS / 2)
    assert reader.read() == {"0": BUSY, "1": BUSY}
    recorder.write(["0"], now=WRITE_SECONDS)
    assert reader.read() == {"0": ON_CUDA}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"0": 1}', b'{"0": {"cpu_cores": "much"}}', b"\xff"])
def test_figures_that_make_no_sense_are_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    assert UseReader(tmp_path).read() == {}


def test_a_folder_that_can_not_be_written_stops_nothing(tmp_path: Path) -> None:
    recorder = UseRecorder(tmp_path / "missing")
    recorder.note("0", BUSY)
    recorder.write(["0"], now=0.0)


def test_a_report_reaches_the_view_of_the_job(tmp_path: Path) -> None:
    seen: list[dict[str, DeviceUse]] = []

    def plan(job: Job) -> Iterator[None]:
        job.worker("0").send(ResourceUse(BUSY))
        view = FolderView(job.folder)
        while not (use := view.look(0.0)[0].use):
            yield
        seen.append(use)
        yield from finish(job)

    with FakeBackend() as backend:
        job = Job(tmp_path, backend)
        with job.folder.locked():
            assert job.run(plan).code == 0
    assert seen == [{"0": BUSY}]
    assert FolderView(job.folder).look(0.0)[0].use == {}  # it has ended


def test_a_view_with_figures_is_json() -> None:
    assert msgspec.to_builtins(ON_CUDA) == {
        "cpu_cores": 0.5,
        "memory_bytes": 1 << 30,
        "accelerator_bytes": 3 << 30,
        "stage_sizes": (),
    }
