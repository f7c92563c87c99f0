"""What tests of verbs share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Launcher


@pytest.fixture(scope="session")
def calm(run_job: Launcher, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of an undisturbed run of ``job.py`` on one device."""
    return run_job(Path(__file__).with_name("job.py"), 1, [str(tmp_path_factory.mktemp("calm"))]).digest
