"""A home that is read-only, full or damaged, and what a manager leaves behind: a line that says what to do."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_jobs import run_verb
from tests.cli.test_run import VF
from tests.manager.managed import SCRIPT, Service, until
from virtualflow.core.job_state import JobState
from virtualflow.job.folder import JobFolder, JobSpec
from virtualflow.job.status import JobStatus
from virtualflow.manager.backups import Backups

pytestmark = pytest.mark.timeout(400)  # a busy machine decides nothing
OWN_MOUNTS = ["unshare", "--user", "--map-root-user", "--mount"]
VERBS = (["run", str(SCRIPT), "x"], ["cluster", "up", "--devices", "1"], ["cluster", "up", "--foreground"])


def can_mount() -> bool:
    try:
        return subprocess.run([*OWN_MOUNTS, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def with_home_mounted(home: Path, options: str, words: list[str]) -> subprocess.CompletedProcess[str]:
    """Run ``vf`` where *home* is a file system of its own."""
    home.mkdir(exist_ok=True)
    script = f'mount -t tmpfs -o {options} none "$VF_HOME" && exec "$@"'
    command = [*OWN_MOUNTS, "sh", "-c", script, "sh", *VF, *words]
    environment = os.environ | {"VF_HOME": str(home)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.skipif(not can_mount(), reason="no mounts of one's own here")
@pytest.mark.parametrize("options", ["ro", "size=4k"])
@pytest.mark.parametrize("words", VERBS, ids=lambda words: "-".join(words[:3:2]))
def test_a_read_only_or_full_home_is_an_error_that_says_so(vf_home: Path, options: str, words: list[str]) -> None:
    done = with_home_mounted(vf_home, options, words)
    assert done.returncode == 2, done
    assert "Traceback" not in done.stdout + done.stderr
    assert re.search("Read-only file system|No space left|is full|unable to open|readonly", done.stderr)
    assert str(vf_home) in done.stderr


def test_where_no_file_can_grow_every_verb_says_so(vf_home: Path, tmp_path: Path) -> None:
    for words in VERBS:
        done = subprocess.run(
            [*VF, *words],
            env=os.environ | {"VF_HOME": str(vf_home)},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY)),
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 2, done
        assert "Traceback" not in done.stdout + done.stderr


@pytest.fixture
def service(vf_home: Path) -> Iterator[Service]:
    service = Service(vf_home, "--devices", "2")
    yield service
    service.close()


def test_damaged_records_are_named_and_a_copy_takes_their_place(service: Service, tmp_path: Path) -> None:
    records = service.home / "cluster" / "jobs.sqlite"
    service.up()
    done = service.submit(script(tmp_path))
    assert done.until_over()["state"] == "DONE"
    service.kill()
    with contextlib.closing(sqlite3.connect(records)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    backup = Backups(records).make()
    content = records.read_bytes()
    for damaged in (b"no database" * 1000, content[:4096] + bytes(len(content) - 4096)):
        for suffix in ("-wal", "-shm"):
            records.with_name(records.name + suffix).unlink(missing_ok=True)
        records.write_bytes(damaged)
        for words in (["--foreground"], []):
            code, text = vf_up(*words)
            assert code == 2
            assert "are damaged" in text
            assert "`vf cluster restore`" in text
            assert "Traceback" not in text
    code, text = run_verb("cluster", "restore")
    assert (code, backup.name in text) == (0, True), text
    assert list(records.parent.glob("jobs.sqlite.replaced-*"))
    service.up()
    assert done.view()["state"] == "DONE"
    assert done.view()["launches"] == 1
    assert "a manager runs already" in run_verb("cluster", "restore", str(backup))[1]


def vf_up(*words: str) -> tuple[int, str]:
    command = [*VF, "cluster", "up", "--devices", "2", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    return done.returncode, done.stdout + done.stderr


def script(folder: Path, text: str = "print('done')\n") -> Path:
    path = folder / "short.py"
    path.write_text(text)
    return path


def test_orphans_are_listed_with_and_without_a_manager_and_can_be_taken_in(service: Service, tmp_path: Path) -> None:
    service.up()
    assert run_verb("cluster", "orphans", "--json") == (0, "[]\n")
    assert "no orphans" in run_verb("cluster", "orphans")[1]
    running = service.submit(slow=True, name="precious", priority=4.0)
    waiting = service.submit(min=2, demand=2, name="odd")
    until(lambda: len(running.steps) > 3)
    coordinator = running.coordinator
    service.kill()
    for path in (service.home / "cluster").glob("jobs.sqlite*"):
        path.unlink()
    listed = json.loads(run_verb("cluster", "orphans", "--json")[1])
    assert {each["id"]: each["state"] for each in listed} == {running.id: "RUNNING", waiting.id: "QUEUED"}
    service.up()
    view = running.until_on(1)
    assert (view["name"], view["priority"], running.coordinator) == ("precious", 4.0, coordinator)
    assert [each["id"] for each in json.loads(run_verb("cluster", "orphans", "--json")[1])] == [waiting.id]
    code, text = run_verb("cluster", "orphans")
    assert (code, waiting.id in text) == (0, True)
    assert run_verb("cluster", "orphans", "--adopt", "nobody")[0] == 2
    assert run_verb("cluster", "orphans", "--adopt", waiting.id[:-1], "--json") == (0, "[]\n")
    assert waiting.view()["state"] == "PAUSED"
    running.let_go()
    assert running.until_over()["state"] == "DONE"
    waiting.ask("resume")
    view = waiting.until_over()
    assert view["state"] == "DONE", view["failure"]


def test_the_log_keeps_what_earlier_managers_have_said(service: Service) -> None:
    log = service.home / "cluster" / "manager.log"
    log.parent.mkdir(parents=True)
    log.write_text("what was said before\n")
    for times in (1, 2):
        assert vf_up()[0] == 0
        assert log.read_text().startswith("what was said before\n")
        assert log.read_text().count("has started, with 2 devices") == times
        assert run_verb("cluster", "down")[0] == 0
    assert "what was said before" not in vf_up_with("--policy", "nonsense")


def vf_up_with(*words: str) -> str:
    done = subprocess.run([*VF, "cluster", "up", *words], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 2
    return done.stderr


@pytest.mark.parametrize("devices", ["²", "-4092", "٣", "1e3", "9" * 30, "", "0"])
def test_a_number_of_devices_that_is_none_is_refused(vf_home: Path, tmp_path: Path, devices: str) -> None:
    JobFolder(vf_home / "jobs" / "a-job").create(JobSpec.of("a-job", str(script(tmp_path)), (), ("0",)))
    for words in (["resize", "a-job", "--", devices], ["run", "--devices", devices, str(script(tmp_path))]):
        code, text = run_verb(*words)
        assert code in (1, 2), text
        assert "Traceback" not in text


def test_jobs_that_may_go_on_are_not_cleaned_away(vf_home: Path, tmp_path: Path) -> None:
    for name, managed, state in (
        ("suspended", True, JobStatus(JobState.CANCELLED, asked=True)),
        ("crashed", True, JobStatus(JobState.RUNNING)),
        ("over", True, JobStatus(JobState.FAILED, over=True)),
        ("done", True, JobStatus(JobState.DONE)),
        ("own", False, JobStatus(JobState.CANCELLED)),
    ):
        folder = JobFolder(vf_home / "jobs" / name)
        folder.create(JobSpec.of(name, str(script(tmp_path)), (), ("0",), managed=managed))
        folder.write_state(state)
    assert run_verb("clean", "--older-than", "0", "--yes")[0] == 0
    assert sorted(path.name for path in (vf_home / "jobs").iterdir()) == ["crashed", "suspended"]
    assert run_verb("clean", "suspended", "--yes")[0] == 0  # by its name: its owner knows that it may go on
    assert sorted(path.name for path in (vf_home / "jobs").iterdir()) == ["crashed"]


DAMAGES = [b"", b"{", b"[]", b"null", b"\xff\xfe", b"{}\n{\n{}\n"]


@pytest.mark.parametrize("name", ["job.json", "state.json", "events.jsonl", "launch.json", "lock", "failure.txt"])
def test_one_damaged_folder_hides_no_other_job(vf_home: Path, tmp_path: Path, name: str) -> None:
    for job in ("first", "second"):
        folder = JobFolder(vf_home / "jobs" / job)
        folder.create(JobSpec.of(job, str(script(tmp_path)), (), ("0",)))
        folder.write_state(JobStatus(JobState.FAILED))
    for damage in DAMAGES:
        (vf_home / "jobs" / "first" / name).write_bytes(damage)
        for words in (
            ["status"],
            ["status", "--json"],
            ["status", "first"],
            ["logs", "first"],
            ["resize", "first", "2"],
        ):
            code, text = run_verb(*words)
            assert code in (0, 2), text
            assert "Traceback" not in text
        assert "second" in run_verb("status")[1]
        assert {each["id"] for each in json.loads(run_verb("status", "--json")[1])} == {"first", "second"}


def test_ctrl_c_while_the_verbs_load_says_nothing(vf_home: Path) -> None:
    """A module that is loaded first sends the signal, so that no clock decides when it comes."""
    program = (
        "import os, signal, sys\n"
        "class Now:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == sys.argv[1]: os.kill(os.getpid(), signal.SIGINT)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.meta_path.insert(0, Now())\n"
        "module = sys.argv.pop(1); sys.argv.insert(1, module)\n"
        "from virtualflow.cli.main import main\n"
        "main()\n"
    )
    for module in ("typer", "numpy", "virtualflow.cli.app", "virtualflow.manager.manager"):
        done = subprocess.run(
            [sys.executable, "-c", program, module], capture_output=True, text=True, timeout=100, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", ""), module


def test_ctrl_c_while_the_fork_server_starts_leaves_nobody_and_no_traceback(vf_home: Path, tmp_path: Path) -> None:
    started = subprocess.Popen(
        [*VF, "run", str(SCRIPT), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    server = until(lambda: children_called(started.pid, "virtualflow.backends.forkserver"))
    os.killpg(started.pid, signal.SIGINT)
    text, _ = started.communicate(timeout=100)
    assert started.returncode == 128 + signal.SIGINT
    assert "Traceback" not in text
    deadline = time.monotonic() + 60
    while Path(f"/proc/{server}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def children_called(pid: int, name: str) -> int | None:
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        if name.encode() in words:
            return int(child)
    return None
