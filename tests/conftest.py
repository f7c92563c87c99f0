"""Real jobs for tests: real processes, real gloo, forked from one server per test process."""

from __future__ import annotations

import itertools
import os
import signal
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from virtualflow.backends.local import LocalBackend
from virtualflow.core.certificate import Certificate
from virtualflow.events import STREAM, Event, Regrouped, StepDone, read_events
from virtualflow.job.coordinator import Coordinator
from virtualflow.job.folder import JobFolder, JobSpec
from virtualflow.job.outcome import JobOutcome
from virtualflow.train import seeding, solo

# Scripts that tests run import from this package.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).parent.parent / "src"), str(Path(__file__).parent.parent)]
)

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in the background; the commands under test hear Ctrl-C anyway
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def vf_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Jobs of tests leave their files in the test's own folder."""
    monkeypatch.setenv("VF_HOME", str(tmp_path / "vf-home"))
    return tmp_path / "vf-home"


@pytest.fixture(autouse=True)
def fresh_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees what another told ``vf.seed``, or is part of its job."""
    monkeypatch.setattr(seeding, "_seeded", None)
    monkeypatch.setattr(solo, "_solo", None)
    torch.set_num_threads(1)


@dataclass
class Printed:
    """A sink that keeps what each worker printed."""

    text: dict[tuple[str, str], bytes] = field(default_factory=lambda: defaultdict(bytes))

    def write(self, device: str, stream: str, data: bytes, *, lead: bool) -> None:
        self.text[device, stream] += data

    def close(self) -> None: ...


@dataclass(frozen=True)
class Finished:
    """A job that has ended."""

    outcome: JobOutcome
    folder: Path
    printed: Printed

    def out(self, device: str = "0") -> str:
        return self.printed.text[device, "stdout"].decode()

    def err(self, device: str = "0") -> str:
        return self.printed.text[device, "stderr"].decode()

    @property
    def failure(self) -> str:
        return self.outcome.failure.text if self.outcome.failure is not None else ""

    @property
    def events(self) -> list[Event]:
        return list(read_events(self.folder / STREAM))

    @property
    def steps(self) -> list[StepDone]:
        return [event for event in self.events if isinstance(event, StepDone)]

    @property
    def changes(self) -> list[Regrouped]:
        return [event for event in self.events if isinstance(event, Regrouped)]

    @property
    def certificate(self) -> Certificate:
        return Certificate.of(self.events, "test")

    @property
    def digest(self) -> str:
        """The last line that the lead printed."""
        assert self.outcome.code == 0, self.failure + self.err()
        return self.out().strip().splitlines()[-1]


class Launcher:
    """Runs scripts as jobs, on any number of devices."""

    def __init__(self, backend: LocalBackend, folder: Path) -> None:
        self._backend = backend
        self._folder = folder
        self._numbers = itertools.count()

    def __call__(
        self,
        script: Path,
        devices: int = 1,
        arguments: Sequence[str] = (),
        owners: Sequence[int] | None = None,
        audit: bool = False,
        patience_seconds: float = 30.0,
    ) -> Finished:
        number = next(self._numbers)
        folder = JobFolder(self._folder / f"job-{number}")
        job = JobSpec.of(
            job_id=f"job-{number}",
            script=str(script),
            arguments=tuple(arguments),
            devices=tuple(str(device) for device in range(devices)),
            owners=tuple(owners) if owners is not None else None,
            patience_seconds=patience_seconds,
            audit=audit,
        )
        printed = Printed()
        folder.create(job)
        return Finished(Coordinator(job, folder, self._backend, printed).run(), folder.path, printed)


@pytest.fixture(scope="session")
def backend() -> Iterator[LocalBackend]:
    with LocalBackend() as backend:
        yield backend


@pytest.fixture(scope="session")
def run_job(backend: LocalBackend, tmp_path_factory: pytest.TempPathFactory) -> Launcher:
    return Launcher(backend, tmp_path_factory.mktemp("jobs"))
