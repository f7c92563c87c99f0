"""What the workers of a managed job use is known to the manager, while the job runs."""

from __future__ import annotations

from pathlib import Path

from virtualflow.core.job_view import DeviceUse
from virtualflow.job.device_use import WRITE_SECONDS, UseRecorder
from virtualflow.manager.fleet import Fleet


def test_the_fleet_has_the_newest_figures_of_a_running_job(vf_home: Path) -> None:
    fleet = Fleet()
    folder = fleet.folder("j")
    folder.make()
    recorder = UseRecorder(folder.path)
    idle, busy = DeviceUse(0.02, 1 << 28), DeviceUse(0.98, 1 << 29)
    fleet.adopt("j", ["0"])
    assert fleet.use("j") == {}
    with folder.locked():
        for now, use in ((0.0, idle), (WRITE_SECONDS, busy)):
            recorder.note("0", use)
            recorder.write(["0"], now)
            assert fleet.look("j") is None
            assert fleet.use("j") == {"0": use}
    fleet.forget("j")
    assert fleet.use("j") == {}
