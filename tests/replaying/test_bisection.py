"""Two runs that differ for a reason that was planted: the reason is named."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.conftest import Finished, Launcher
from tests.replaying.test_step_replay import PLANTED
from virtualflow.backends.local import LocalBackend
from virtualflow.events import STREAM
from virtualflow.job.folder import JobFolder, JobSpec
from virtualflow.job.serve import run_job as serve
from virtualflow.replaying import bisection, parting
from virtualflow.replaying.bisection import Bisected, bisect
from virtualflow.replaying.step_replay import PastRun
from virtualflow.system.home import home


def bisected(one: Finished, other: Finished, cpus: LocalBackend) -> Bisected:
    assert one.outcome.code == other.outcome.code == 0, one.failure + other.failure
    return bisect(PastRun.of(JobFolder(one.folder)), PastRun.of(JobFolder(other.folder)), backend=cpus)


def test_equal_runs_are_equal(run_on_cpus: Launcher, cpus: LocalBackend, tmp_path: Path) -> None:
    runs = [run_on_cpus(PLANTED, devices, ["none", str(tmp_path)]) for devices in (1, 2)]
    assert bisected(runs[0], runs[1], cpus) == Bisected(bisection.compare(runs[0].certificate, runs[1].certificate))


def test_an_unseeded_dropout_is_named(run_on_cpus: Launcher, cpus: LocalBackend, tmp_path: Path) -> None:
    runs = [run_on_cpus(PLANTED, 1, ["dropout", str(tmp_path)]) for _ in range(2)]
    found = bisected(runs[0], runs[1], cpus)
    assert found.parting == parting.Parting("forward", 0, "1 (OwnDropout)")
    assert found.repeats == (False, False)
    assert bisection.NOT_REPEATABLE in found.cause


def test_a_counter_that_no_checkpoint_holds_is_named(run_on_cpus: Launcher, cpus: LocalBackend, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    runs = [run_on_cpus(PLANTED, 1, ["counter", str(tmp_path)]), run_on_cpus(PLANTED, 2, ["counter", str(other)])]
    found = bisected(runs[0], runs[1], cpus)
    assert found.parting is not None
    assert (found.parting.phase, found.parting.module) == ("forward", "1 (Counting)")
    assert "a counter" in found.cause


def test_another_number_of_threads_is_a_fact(run_on_cpus: Launcher, cpus: LocalBackend, tmp_path: Path) -> None:
    one = run_on_cpus(PLANTED, 1, ["threads", str(tmp_path)])
    job = JobSpec.of("two-threads", str(PLANTED), ("threads", str(tmp_path)), ("0",), threads_per_device=2)
    folder = JobFolder(home() / "jobs" / job.job_id)
    folder.create(job)
    assert serve(folder).code == 0
    found = bisect(PastRun.of(JobFolder(one.folder)), PastRun.of(folder))
    assert any(fact.startswith("threads_per_device") for fact in found.verdict.facts)
    assert found.parting == parting.Parting("forward", 0, "1 (BoundToThreads)")
    assert found.repeats == (True, True)
    assert "facts differ" in found.cause


def test_a_changed_file_of_data_is_named(run_on_cpus: Launcher, cpus: LocalBackend, tmp_path: Path) -> None:
    runs = []
    for scale in (1.0, 1.5):
        (tmp_path / "scale.txt").write_text(str(scale))
        runs.append(run_on_cpus(PLANTED, 1, ["data", str(tmp_path)]))
    found = bisected(runs[0], runs[1], cpus)
    assert any("scale.txt" in fact for fact in found.verdict.facts)
    assert "scale.txt" in found.cause


def test_a_flipped_bit_is_nobodys_code(run_on_cpus: Launcher, cpus: LocalBackend, tmp_path: Path) -> None:
    good = run_on_cpus(PLANTED, 1, ["none", str(tmp_path)])
    (tmp_path / "flip").touch()
    bad = run_on_cpus(PLANTED, 1, ["none", str(tmp_path)])
    (tmp_path / "flip").unlink()
    found = bisected(good, bad, cpus)
    assert found.repeats == (True, False)
    assert "at any try" in found.cause
    assert bisection.MACHINE in found.cause


def test_another_version_of_torch_is_a_fact(run_on_cpus: Launcher, cpus: LocalBackend, tmp_path: Path) -> None:
    run = run_on_cpus(PLANTED, 1, ["none", str(tmp_path)])
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(run.folder, elsewhere)
    stream = (elsewhere / STREAM).read_text()
    version, step = run.certificate.facts["torch"], run.certificate.steps[5]
    (elsewhere / STREAM).write_text(
        stream.replace(f'"{version}"', '"1.13.0"').replace(f'"{step.loss_bits}"', '"0x1.0000000000000p+0"')
    )
    found = bisect(PastRun.of(JobFolder(run.folder)), PastRun.of(JobFolder(elsewhere)), backend=cpus)
    assert found.verdict.step == 5
    assert found.repeats == (True, False)
    assert "torch: 1.13.0 and" in found.cause
