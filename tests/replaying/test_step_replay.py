"""A step of a run that is over, made again on other devices."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.conftest import Finished, Launcher
from virtualflow.backends.local import LocalBackend
from virtualflow.errors import LaunchError
from virtualflow.job.folder import JobFolder
from virtualflow.replaying.step_replay import PastRun, Replay, replayed
from virtualflow.system.home import home

PLANTED = Path(__file__).parent / "planted.py"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def finished(run_on_cpus: Launcher, files: Path) -> Finished:
    done = run_on_cpus(PLANTED, 2, ["none", str(files)])
    assert done.outcome.code == 0, done.failure
    return done


def run_of(done: Finished) -> PastRun:
    return PastRun.of(JobFolder(done.folder))


def test_a_step_is_replayed_from_the_last_checkpoint_before_it(finished: Finished, cpus: LocalBackend) -> None:
    run = run_of(finished)
    steps = run.certificate.steps
    wanted = Replay(run.folder, max(steps), ("0", "1", "2"))
    with replayed(run, wanted, backend=cpus) as (found, _):
        assert found.verdict.equal, found.verdict.summary
        assert found.start.endswith("kept.pt")
        assert found.first_step == len(steps) // 2
        assert found.certificate.steps[max(steps)].chain == steps[max(steps)].chain


def test_a_step_before_all_checkpoints_is_replayed_from_the_beginning(finished: Finished, cpus: LocalBackend) -> None:
    run = run_of(finished)
    with replayed(run, Replay(run.folder, 3, ("0",)), backend=cpus) as (found, _):
        assert found.verdict.equal, found.verdict.summary
        assert (found.start, found.first_step, found.verdict.steps_compared) == ("the beginning", 0, 4)


def test_nothing_of_the_run_is_changed_and_nothing_is_left(finished: Finished, files: Path, cpus: LocalBackend) -> None:
    before = {path: path.stat().st_mtime_ns for path in (*finished.folder.rglob("*"), *files.iterdir())}
    run = run_of(finished)
    with replayed(run, Replay(run.folder, max(run.certificate.steps), ("0",)), backend=cpus):
        pass
    after = {path: path.stat().st_mtime_ns for path in (*finished.folder.rglob("*"), *files.iterdir())}
    assert after == before
    assert not list((home() / "jobs").iterdir())


def test_virtual_nodes_give_the_same_on_any_devices(finished: Finished, cpus: LocalBackend) -> None:
    run, seen = run_of(finished), []
    for devices in (("0",), ("0", "1", "2")):
        with replayed(run, Replay(run.folder, 5, devices, notes=True, tensors=True), backend=cpus) as (found, folder):
            kept = torch.load(folder / "node-00002.pt")
            seen.append([note | {"device": ""} for note in found.nodes])
            assert [note["node"] for note in found.nodes] == list(range(len(found.nodes)))
            assert kept["gradients"].keys() == found.nodes[2]["gradients"].keys()
            assert float(kept["loss"]) == found.nodes[2]["loss"]
            assert len(kept["inputs"][0]) == len(found.nodes[2]["indices"])
    assert seen[0] == seen[1]


def test_a_checkpoint_of_another_run_is_not_gone_on_from(
    finished: Finished, run_on_cpus: Launcher, files: Path, cpus: LocalBackend
) -> None:
    kept = (files / "kept.pt").read_bytes()
    try:
        assert run_on_cpus(PLANTED, 1, ["threads", str(files)]).outcome.code == 0  # it has written kept.pt, too
        run = run_of(finished)
        with replayed(run, Replay(run.folder, 10, ("0",)), backend=cpus) as (found, _):
            assert found.verdict.equal, found.verdict.summary
            assert found.start == "the beginning"
    finally:
        (files / "kept.pt").write_bytes(kept)


def test_a_step_that_the_run_has_not_made_is_refused(finished: Finished) -> None:
    run = run_of(finished)
    with pytest.raises(LaunchError, match="has no step 999: it has made the steps 0 to"):
        run.check(999, notes=False)
