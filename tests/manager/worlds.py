"""Managers for tests, one after another over the same records: without coordinators, or with ones that a test plays."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from virtualflow.cli.main import app
from virtualflow.cluster.policies import registry
from virtualflow.cluster.policies.base import Policy
from virtualflow.cluster.users import Users
from virtualflow.core.devices import parse_pools
from virtualflow.core.job_description import JobDescription
from virtualflow.core.job_terms import JobTerms
from virtualflow.job import launch, tokens
from virtualflow.job.listener import listen
from virtualflow.manager.api.serving import serving
from virtualflow.manager.api.views import ClusterSource
from virtualflow.manager.client import folder
from virtualflow.manager.description import Cluster
from virtualflow.manager.fleet import Fleet
from virtualflow.manager.manager import Manager
from virtualflow.manager.records import Records
from virtualflow.manager.submission import Submission
from virtualflow.manager.token_book import TokenBook
from virtualflow.system.identity import identity
from virtualflow.testing import FakeLauncher

SCRIPT = {"job.py": "print('hello')\n"}


Starts = FakeLauncher


@pytest.fixture
def starts() -> Starts:
    return FakeLauncher()


class World:
    """Managers, one after another, over the same records."""

    def __init__(self, folder: Path, starts: Starts) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._starts = starts
        self.path = folder / "jobs.sqlite"
        self.opened: list[Records] = []

    def manager(
        self,
        devices: str = "4",
        policy: str | Policy = "wfs",
        clock: Callable[[], float] = time.time,
        *,
        fleet_clock: Callable[[], float] = time.monotonic,
        answer_seconds: float = 10.0,
        users: Users | None = None,
    ) -> Manager:
        self.opened.append(Records(self.path))
        cluster = Cluster(tuple(parse_pools(devices)), {}, users=users)
        made = registry.make(policy) if isinstance(policy, str) else policy
        fleet = Fleet(cluster.patience_seconds, self._starts, fleet_clock, answer_seconds)
        return Manager(cluster, made, self.opened[-1], clock, fleet)


@pytest.fixture
def world(tmp_path: Path, vf_home: Path, starts: Starts) -> Iterator[World]:
    world = World(vf_home, starts)
    yield world
    for records in world.opened:
        records.close()


@contextlib.contextmanager
def launched(manager: Manager, starts: Starts) -> Iterator[None]:
    """The coordinators that were started run."""
    with contextlib.ExitStack() as locks:
        for job_id, token in starts.made:
            folder = manager.fleet.folder(job_id)
            locks.enter_context(folder.locked())
            launch.take(folder, token)
        yield


@contextlib.contextmanager
def answering(manager: Manager) -> Iterator[None]:
    """Verbs reach the manager, over HTTP."""
    folder().mkdir(parents=True, exist_ok=True)
    token = tokens.made_token(folder() / "token", identity()).secret
    with listen("127.0.0.1", 0) as listening, serving(ClusterSource(manager), TokenBook(token), listening):
        (folder() / "address").write_text(f"http://127.0.0.1:{listening.getsockname()[1]}\n")
        yield


def job(
    arguments: tuple[str, ...] = (), name: str = "", environment: dict[str, str] | None = None, **terms: Any
) -> Submission:
    description = JobDescription("job.py", arguments, name=name)
    return Submission(description, SCRIPT, environment=environment, terms=JobTerms(**terms))


def vf(*words: str | Path) -> str:
    """What a command prints that must succeed."""
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout
