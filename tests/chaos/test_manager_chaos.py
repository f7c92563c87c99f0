"""Random SIGKILLs of manager, coordinators and workers: each accepted job ends once, with the undisturbed bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.manager import ManagerChaos
from tests.conftest import Launcher
from tests.manager.managed import SCRIPT


@pytest.mark.timeout(600)
def test_a_manager_under_fire_loses_no_job_and_runs_none_twice(run_job: Launcher, tmp_path: Path) -> None:
    (tmp_path / "calm").mkdir()
    calm = run_job(SCRIPT, 1, [str(tmp_path / "calm")]).digest
    chaos = ManagerChaos(tmp_path / "home", seed=3, rounds=1)
    chaos.run(calm)
    print(f"{len(chaos.jobs)} jobs: {dict(chaos.done)}")
    assert chaos.done["kill manager"] == 3
