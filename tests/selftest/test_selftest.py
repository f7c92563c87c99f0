"""``vf selftest`` finds promises kept on this machine, on a CUDA device made for tests, and broken ones broken."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests import fakecuda
from tests.fakecuda import build
from virtualflow.backends.local import LocalBackend
from virtualflow.errors import LaunchError
from virtualflow.events import StepDone
from virtualflow.events.certificate import Certificate
from virtualflow.selftest import trials
from virtualflow.selftest.promises import FAIL, PASS, QUICK, SKIP, Checks

COMMAND = [sys.executable, "-m", "virtualflow.cli.main", "selftest", "--quick", "--devices", "2"]


def selftested(report: Path, environment: Mapping[str, str], *options: str) -> tuple[int, dict[str, Any], str]:
    """The exit code of a selftest, its report, and what it printed besides."""
    command = [*COMMAND, "--json", "--report", str(report), *options]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


@pytest.mark.timeout(600)
def test_every_promise_is_kept_here(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    code, report, progress = selftested(file, {}, "--device-type", "cpu")
    assert code == 0, (progress, [check for check in report.get("checks", ()) if check["status"] == FAIL])
    assert (report["passed"], report["complete"]) == (True, True)
    assert [check["status"] for check in report["checks"]] == [PASS] * len(report["checks"])
    assert progress.count(PASS) == len(report["checks"])
    by_name = {check["promise"]: check["figures"] for check in report["checks"]}
    assert len(by_name["resized while it trains: the same bits"]["pauses_ms"]) == 3
    assert len(by_name["a worker killed, then the lead: the same bits"]["recoveries_ms"]) == 2
    assert by_name["speed against DistributedDataParallel on 2 devices"]["convnet"]["ratios"]["exact"] > 0
    assert report["facts"]["torch"]
    assert json.loads(file.read_text())["checks"] == report["checks"]
    assert str(Path.home()) not in file.read_text()


@pytest.mark.timeout(900)
@pytest.mark.skipif(build.why_not() is not None, reason=build.why_not() or "")
def test_every_promise_is_kept_on_cuda(tmp_path: Path) -> None:
    code, report, progress = selftested(tmp_path / "report.json", fakecuda.environment(2))
    assert code == 0, (progress, [check for check in report.get("checks", ()) if check["status"] == FAIL])
    assert report["accelerators"] == [{"type": "cuda", "name": "Fake GPU"}] * 2
    assert report["facts"]["device_type"] == "Fake GPU"
    skipped = [check["promise"] for check in report["checks"] if check["status"] != PASS]
    assert skipped == ["speed against DistributedDataParallel on 2 devices"]  # this torch has no NCCL of its own


@pytest.mark.timeout(300)
def test_a_job_that_hangs_is_ended_and_told_of(backend: LocalBackend, tmp_path: Path) -> None:
    trial_runner = trials.TrialRunner(backend, tmp_path, "cpu", limit_seconds=3.0)
    hold = [(10**6, lambda coordinator: False)]
    arguments = ["mlp", "--virtual-nodes", "8", "--epochs", "1000", "--examples", "512", "--hold", "{place}/hold"]
    with pytest.raises(
        LaunchError, match=r"the job hung: it had not ended after 3 s, \d+ steps? and 0 of 1 interventions"
    ):
        trial_runner.run("train_digits", arguments, 1, hold)


@pytest.mark.timeout(300)
def test_more_devices_than_there_are_is_refused_before_anything_starts(tmp_path: Path) -> None:
    code, report, printed = selftested(tmp_path / "report.json", {}, "--device-type", "cuda")
    assert (code, report) == (2, {})
    assert "this machine has 0" in printed
    assert not (tmp_path / "report.json").exists()


@pytest.mark.timeout(300)
def test_ctrl_c_leaves_what_was_found_and_no_process(tmp_path: Path) -> None:
    command = [*COMMAND, "--device-type", "cpu", "--report", str(tmp_path / "report.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as running:
        assert running.stdout is not None
        while PASS not in running.stdout.readline():
            assert running.poll() is None
        marker = f"VF_FORKED_FOR={running.pid}-"
        running.send_signal(signal.SIGINT)
        printed = running.stdout.read()
    assert running.returncode == 130
    assert "interrupted" in printed
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["passed"], report["complete"], report["checks"][0]["status"]) == (False, False, PASS)
    deadline = time.monotonic() + 120
    while _has_processes(marker) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _has_processes(marker)


def _has_processes(marker: str) -> bool:
    for each in Path("/proc").glob("[0-9]*/environ"):
        try:
            if marker.encode() in each.read_bytes():
                return True
        except OSError:
            continue
    return False


@dataclass
class Trial:
    """A job that ended with *digest*."""

    digest: str = "d" * 32
    loss: float = 1.0
    events: list[Any] = field(default_factory=list)

    @property
    def result(self) -> dict[str, Any]:
        return {"digest": self.digest, "accuracy": 0.9}

    @property
    def certificate(self) -> Certificate:
        step = StepDone(0, 0, self.loss, self.loss.hex(), None, "ids", self.digest, 4, 0.1, 1)
        return Certificate({}, {0: step}, {})

    def pauses_ms(self, cause: str) -> list[float]:
        return [1.0]


class TrialRunner:
    """Runs nothing: the first jobs, those on one device, end alike, and the others as they are told to."""

    def __init__(self, other: Trial | None) -> None:
        self._other = other

    def run(self, program: str, arguments: list[str], devices: int, interventions: Any = ()) -> Trial:
        if devices > 1 and self._other is None:
            raise LaunchError("a worker failed")
        return self._other if devices > 1 and self._other is not None else Trial()


def statuses(other: Trial | None, devices: int) -> dict[str, tuple[str, str]]:
    checks: Any = Checks(TrialRunner(other), devices, QUICK)  # type: ignore[arg-type]
    result = [check() for promise, check in checks.promises() if "devices: the same" in promise or "killed" in promise]
    return {check.promise: (check.status, check.detail) for check in result}


def test_other_bits_fail_with_the_first_difference() -> None:
    for status, detail in statuses(Trial("e" * 32, loss=2.0), 4).values():
        assert status == FAIL
        assert "different since step 0" in detail


def test_a_job_that_fails_fails_its_promise_with_its_error() -> None:
    assert set(statuses(None, 2).values()) == {(FAIL, "a worker failed")}


def test_what_nobody_has_thought_of_fails_its_promise_too() -> None:
    class Broken(TrialRunner):
        def run(self, *_: Any, **__: Any) -> Trial:
            raise ZeroDivisionError("a defect")

    checks: Any = Checks(Broken(None), 2, QUICK)  # type: ignore[arg-type]
    result = [check() for _, check in checks.promises()]
    assert {(check.status, check.detail) for check in result} == {(FAIL, "ZeroDivisionError: a defect")}


def test_the_counts_are_powers_of_two_and_all_devices() -> None:
    assert "mlp on 1, 2, 4, 6 devices: the same bits" in statuses(Trial(), 6)


def test_what_needs_two_devices_is_skipped_on_one() -> None:
    assert {status for status, _ in statuses(Trial(), 1).values()} == {SKIP}
