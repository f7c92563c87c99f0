"""Real jobs for tests: real processes, real gloo, forked from one server per test process."""

from __future__ import annotations

import itertools
import os
import signal
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import hypothesis
import pytest
import torch

from tests import fakecuda
from tests.ending import end_job
from tests.fakecuda import build
from virtualflow.backends.local import LocalBackend
from virtualflow.events import STREAM, Regrouped, StepDone, StreamEvent, read_events
from virtualflow.events.certificate import Certificate
from virtualflow.job.coordinator import Coordinator
from virtualflow.job.folder import JobFolder, JobSpec
from virtualflow.job.outcome import JobOutcome
from virtualflow.train import seeding, solo

# The same examples in every run; `make chaos` draws others.
hypothesis.settings.register_profile("repeatable", derandomize=True)
if "VF_RANDOM" not in os.environ:
    hypothesis.settings.load_profile("repeatable")
BUSY_SECONDS = 400  # for a test that runs jobs
WAITING = ("backends", "job", "manager", "examples", "docs", "selftest", "fakecuda", "dashboard", "chaos")
COMPUTING = ("cluster", "core", "events", "loggers", "policies", "porting", "program", "sim", "solver", "system")

# Scripts that tests run import from this package.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).parent.parent / "src"), str(Path(__file__).parent.parent)]
)

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in the background; the commands under test hear Ctrl-C anyway
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def vf_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Jobs of tests leave their files in the test's own folder, and no process."""
    monkeypatch.setenv("VF_HOME", str(tmp_path / "vf-home"))
    yield tmp_path / "vf-home"
    for folder in map(JobFolder, tmp_path.glob("*/jobs/*")):
        if (folder.path / "coordinator").exists():
            end_job(folder)


@pytest.fixture(autouse=True)
def fresh_settings(vf_home: Path) -> None:
    """No test sees what another told ``vf.seed``, or is part of its job. If there is a CUDA device, models go there."""
    seeding.forget_seed()
    alone = None
    if fakecuda.VARIABLE in os.environ:
        alone = solo.Solo()
        alone.job = replace(alone.job, device_type="cuda")
    solo.start_over(alone)
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
    def events(self) -> list[StreamEvent]:
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
        cells: Sequence[Sequence[int]] | None = None,
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
            cells=tuple(map(tuple, cells)) if cells is not None else None,
        )
        printed = Printed()
        folder.create(job)
        return Finished(Coordinator(job, folder, self._backend, printed).run(), folder.path, printed)


def run_to_its_end(job: JobSpec, backend: LocalBackend, folder: Path) -> Finished:
    """Run *job* in *folder*. Raises RuntimeError if it fails."""
    place, printed = JobFolder(folder), Printed()
    place.create(job)
    outcome = Coordinator(job, place, backend, printed).run()
    if outcome.failure is not None:
        raise RuntimeError(outcome.failure.text)
    return Finished(outcome, place.path, printed)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests marked ``on_cuda_too`` run their jobs on CPUs, and again on CUDA devices made for tests.

    With ``on_cuda_too(some=[...])``, those with such parameters do in ``make test``, and all of them in ``make chaos``.
    Tests that run no job are run again, with their whole file, in a process that has such devices.
    """
    if not metafunc.definition.get_closest_marker("on_cuda_too"):
        return
    if "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", ["cpu", "gpu"], indirect=True, scope="session")
    else:
        assert metafunc.definition.path in fakecuda.RUN_AGAIN, f"{metafunc.definition.nodeid} would not run on CUDA"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A process that has such devices runs what makes use of them there: jobs have processes of their own.

    Whatever runs jobs has time on a busy machine, where a process may take a minute to start. Files that wait a lot
    come first and those that only compute come last, so that none is left alone at the end.
    """
    items.sort(key=_turn)
    for item in items:
        if "cpus" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(BUSY_SECONDS))
    if fakecuda.VARIABLE in os.environ:
        items[:] = [
            item
            for item in items
            if "backend" not in getattr(item, "fixturenames", ()) and not item.get_closest_marker("host_only")
        ]
    elif "VF_ALL_ON_CUDA" not in os.environ:
        items[:] = [item for item in items if not _is_left_to_chaos(item)]


def _turn(item: pytest.Item) -> int:
    folder = item.path.parent.name
    return 0 if folder in WAITING else 2 if folder in COMPUTING else 1


def _is_left_to_chaos(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("on_cuda_too")
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if marker is None or "some" not in marker.kwargs or parameters.get("backend") != "gpu":
        return False
    return not set(map(str, parameters.values())) & set(marker.kwargs["some"])


@pytest.fixture(scope="session")
def cpus() -> Iterator[LocalBackend]:
    """Jobs run on CPUs here, whatever the test's others run on: what comes out is what must come out there."""
    with LocalBackend() as backend:
        yield backend


@pytest.fixture(scope="session")
def backend(
    request: pytest.FixtureRequest, cpus: LocalBackend, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalBackend]:
    if getattr(request, "param", "cpu") == "cpu":
        yield cpus
        return
    if reason := build.why_not():
        pytest.skip(reason)
    # Its workers note in their home which device each has: not in the user's.
    environment = fakecuda.environment(fakecuda.DEVICES) | {"VF_HOME": str(tmp_path_factory.mktemp("gpu-home"))}
    with LocalBackend(environment=environment) as gpus:
        assert len(gpus.accelerators) == fakecuda.DEVICES  # else jobs would run on CPUs without a word
        yield gpus


@pytest.fixture(scope="session")
def run_job(backend: LocalBackend, tmp_path_factory: pytest.TempPathFactory) -> Launcher:
    return Launcher(backend, tmp_path_factory.mktemp("jobs"))


@pytest.fixture(scope="session")
def run_on_cpus(cpus: LocalBackend, tmp_path_factory: pytest.TempPathFactory) -> Launcher:
    return Launcher(cpus, tmp_path_factory.mktemp("jobs-on-cpus"))


@pytest.fixture(scope="session")
def calm(run_on_cpus: Launcher, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of an undisturbed run of ``cli/job.py`` on one device, without a manager."""
    return run_on_cpus(Path(__file__).parent / "cli" / "job.py", 1, [str(tmp_path_factory.mktemp("calm"))]).digest
