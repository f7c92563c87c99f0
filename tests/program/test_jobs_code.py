"""One job, one program: whatever is edited after it began, and wherever its workers run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest

from tests.conftest import Finished, Launcher, Printed
from tests.job.driven import Driven, to
from virtualflow.backends.local import LocalBackend
from virtualflow.errors import LaunchError
from virtualflow.events.certificate import compare
from virtualflow.job.coordinator import Coordinator
from virtualflow.job.folder import JobFolder
from virtualflow.program import capture
from virtualflow.program.capture import take
from virtualflow.program.manifest import Program, RunningProgram, read_modules, write_modules

LOOK = """
import concurrent.futures, dataclasses, inspect, json, pickle, sys, time
from pathlib import Path
import helper, pkg.lib

@dataclasses.dataclass
class Options:
    rate: float = 0.1

def later():
    time.sleep(0.2)
    Path(sys.argv[1]).write_text("written")

concurrent.futures.ThreadPoolExecutor().submit(later)
names = {name: type(value).__name__ for name, value in globals().items() if name.startswith("__")}
seen = {
    "names": names,
    "name": __name__,
    "file": __file__,
    "argv": sys.argv,
    "path": sys.path[0],
    "modules": [helper.__file__, pkg.lib.__file__, pkg.__path__[0]],
    "type": str(dataclasses.fields(Options)[0].type),
    "annotations": str(inspect.signature(helper.annotated)),
    "sources": [inspect.getsource(Options), inspect.getsource(helper.annotated)],
    "pickled": pickle.loads(pickle.dumps(Options(2.0))) == Options(2.0),
    "data": Path(helper.__file__).with_name("data.txt").read_text(),
    "executed": open(Path(__file__).with_name("executed.py")).read(),
    "flags": str(sys.flags).replace("hash_randomization=1", "hash_randomization=0"),
    "order": list({"a", "b", "c", "d", "e"}),
}
print(json.dumps(seen))
"""
TRAIN = """
import importlib, json, virtualflow as vf
sys.path.insert(0, str(folder / "computed"))
from tests.train.small import make, mlp, regression
from pkg.lib import rate
other = importlib.import_module("".join(["oth", "er"]))
vf.seed(0)
trainer = make(mlp(), clip_grad_norm=rate() * other.FACTOR * included["factor"])
for _ in trainer.epochs(20):
    for batch in trainer.batches(regression()):
        trainer.step(batch)
        pace(trainer)
print(trainer.digest())
"""


def library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is on PYTHONPATH for jobs that start from now on."""
    (folder / "pkg").mkdir(parents=True)
    (folder / "pkg" / "lib.py").write_text("def rate():\n    return 0.1\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.environ["PYTHONPATH"], str(folder)]))
    return folder


def test_a_script_sees_what_plain_python_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_job: Launcher
) -> None:
    library(tmp_path / "library", monkeypatch)
    (tmp_path / "helper.py").write_text("def annotated(x: int) -> 'str': ...\n")
    (tmp_path / "data.txt").write_text("some data")
    (tmp_path / "executed.py").write_text("run_as_text = True")
    script = tmp_path / "script.py"
    script.write_text(LOOK)
    command = [sys.executable, str(script), str(tmp_path / "one")]
    plain = subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": "0"}, capture_output=True, check=True)
    job = run_job(script, arguments=[str(tmp_path / "two")])
    assert job.outcome.code == 0, job.failure
    here, there = json.loads(plain.stdout), json.loads(job.out())
    assert here.pop("argv")[0] == there.pop("argv")[0]
    assert here == there
    assert (tmp_path / "two").read_text() == "written"  # a job ends when its script's threads have ended
    assert "it has made no Trainer" in job.err()


def test_edits_after_the_start_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: LocalBackend
) -> None:
    libraries = library(tmp_path / "library", monkeypatch)

    def job(name: str) -> Driven:
        folder = tmp_path / name
        (folder / "computed").mkdir(parents=True)
        (folder / "computed" / "other.py").write_text("FACTOR = 0.5")
        (folder / "included.json").write_text('{"factor": 0.5}')
        reads = "import json\nincluded = json.loads((folder / 'included.json').read_text())\n"
        driven = Driven(backend, folder, reads + TRAIN)
        driven.include = ["included.json"]
        return driven

    calm = job("calm")
    monkeypatch.chdir(calm.folder)
    undisturbed = calm.run(1)
    busy = job("busy")
    monkeypatch.chdir(busy.folder)

    def edit(_: Coordinator) -> None:
        (libraries / "pkg" / "lib.py").write_text("def rate():\n    return 7.0\n")
        (busy.folder / "computed" / "other.py").write_text("FACTOR = 7.0")
        (busy.folder / "included.json").write_text('{"factor": 7.0}')
        busy.script.write_text("raise SystemExit('edited')")

    grown = busy.run(1, [(3, edit), (3, to(2)), (10, to(3))])
    assert undisturbed.digest == grown.digest
    assert len(grown.changes) >= 2
    verdict = compare(undisturbed.certificate, grown.certificate)
    assert verdict.summary.startswith("equal: "), verdict
    assert "other" in grown.certificate.facts["sources"]


READS = """
import json, os, virtualflow as vf
from tests.train.small import make, mlp, regression
config = json.loads((folder / "config.json").read_text())
(folder / "own.json").write_text("{}")
json.loads((folder / "own.json").read_text())
vf.seed(0)
trainer = make(mlp(), clip_grad_norm=config["norm"])
for _ in trainer.epochs(20):
    for batch in trainer.batches(regression()):
        trainer.step(batch)
        if trainer.is_lead:
            (folder / "own.json").write_text(str(trainer.global_step))
        pace(trainer)
print(trainer.digest())
"""


def configured(backend: LocalBackend, folder: Path) -> Driven:
    folder.mkdir()
    (folder / "config.json").write_text('{"norm": 0.1}')
    (folder / "own.json").write_text("of an earlier run")
    return Driven(backend, folder, READS)


def test_nobody_joins_with_another_config(tmp_path: Path, backend: LocalBackend) -> None:
    job = configured(backend, tmp_path / "job")
    refusals: list[str] = []

    def edit(_: Coordinator) -> None:
        (job.folder / "config.json").write_text('{"norm": 0.7}')

    def grow(coordinator: Coordinator) -> None:
        with pytest.raises(LaunchError) as refusal:
            coordinator.resize(3)
        refusals.append(str(refusal.value))

    def kill(coordinator: Coordinator) -> None:
        os.kill(coordinator.status().workers[1].pid, signal.SIGKILL)

    def is_alone(coordinator: Coordinator) -> bool:
        return coordinator.roster.target == ("0",)

    finished = job.run(2, [(3, edit), (3, grow), (5, kill), (6, is_alone)])
    assert finished.outcome.code == 0, finished.failure
    assert "config.json changed since the job read it" in refusals[0]
    assert "own.json" not in refusals[0]
    assert "device 1 can't join: " in finished.err()  # told to whoever watches; the job went on
    assert finished.certificate.facts["files"].keys() == {"config.json"}


def test_neither_a_resume_nor_a_queued_job_starts_with_another_config(tmp_path: Path, backend: LocalBackend) -> None:
    job = configured(backend, tmp_path / "job")
    first = job.run(1)
    assert first.outcome.code == 0, first.failure
    folder = JobFolder(first.folder)
    (job.folder / "config.json").write_text('{"norm": 0.7}')
    again = Finished(Coordinator(folder.spec(), folder, backend, Printed()).run(), folder.path, Printed())
    assert again.outcome.code == 1
    assert "config.json changed since the job read it" in again.failure
    assert folder.read_state().state == "FAILED"

    queued = JobFolder(tmp_path / "queued")
    queued.path.mkdir()
    queued.change(folder.spec())
    write_modules(queued.snapshot, take(job.script, arguments=[str(job.folder / "config.json")], waits=True).modules)
    (job.folder / "config.json").write_text('{"norm": 0.8}')
    printed = Printed()
    late = Finished(Coordinator(queued.spec(), queued, backend, printed).run(), queued.path, printed)
    assert late.outcome.code == 1
    assert "config.json changed since the job was handed in" in late.failure


NO_TRAINER = """
import sys, time, torch
from pathlib import Path

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters())
for _ in range(2):
    model(torch.ones(2)).sum().backward()
    optimizer.step()

trained, devices = Path(sys.argv[1]), int(sys.argv[2])
with trained.open("a") as file:
    file.write("x")
while trained.stat().st_size < devices:
    time.sleep(0.01)
"""


def test_a_script_without_a_trainer_fails_on_several_devices(tmp_path: Path, run_job: Launcher) -> None:
    script = tmp_path / "script.py"
    script.write_text(NO_TRAINER)
    two = run_job(script, devices=2, arguments=[str(tmp_path / "two"), "2"])
    assert two.outcome.code == 3
    assert "it has made no Trainer: every device trains a copy of its own" in two.failure
    assert two.err("0").count("warning: every device trains a copy of its own") == 1
    assert two.err("1") == ""
    assert two.failure.count(f"`vf port {script}` says what to change") == 1
    one = run_job(script, arguments=[str(tmp_path / "one"), "1"])
    assert one.outcome.code == 0
    assert one.err().count("warning: the script has ended, and it has made no Trainer") == 1
    assert f"`vf port {script}` says what to change" in one.err()


def test_the_scripts_own_exit_code_counts_without_a_trainer_too(tmp_path: Path, run_job: Launcher) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nsys.exit(7)\n")
    assert run_job(script, devices=2).outcome.code == 7


def test_standard_input_is_refused(tmp_path: Path, run_job: Launcher) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nassert not sys.stdin.isatty()\nsettings = sys.stdin.read()")
    finished = run_job(script)
    assert "reads from its standard input, which a job's workers do not have" in finished.failure


def test_a_snapshot_travels_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libraries = library(tmp_path / "library", monkeypatch)
    (libraries / "pkg" / "old.py").write_bytes(b"# -*- coding: latin-1 -*-\r\nNAME = '\xe9'\r\n")
    (tmp_path / "table.bin").write_bytes(bytes(range(256)))
    script = tmp_path / "script.py"
    script.write_text("import pkg.lib")
    taken = take(script, include=["*.bin"], directory=str(tmp_path))
    write_modules(tmp_path / "there", json.loads(json.dumps(taken.modules)))
    program = Program.of(tmp_path / "there", "script.py")
    assert program == taken.program
    for original, name in program.copies.items():
        assert (tmp_path / "there" / name).read_bytes() == Path(original).read_bytes()
    assert {str(libraries / "pkg" / "old.py"), str(tmp_path / "table.bin")} <= program.copies.keys()
    assert read_modules(tmp_path / "there").keys() == taken.modules.keys()


@pytest.mark.parametrize(
    "name", ["../evil.py", "pkg/../../evil.py", "/evil.py", "..", "pkg/..", "", "link.py", "links/x.py"]
)
def test_no_name_leads_out_of_a_snapshot(tmp_path: Path, name: str) -> None:
    snapshot, outside = tmp_path / "snapshot", tmp_path / "outside"
    write_modules(snapshot, {"pkg/lib.py": ""})
    outside.mkdir()
    (snapshot / "link.py").symlink_to(outside / "x.py")
    (snapshot / "links").symlink_to(outside)
    with pytest.raises(LaunchError, match="outside of its folder"):
        write_modules(snapshot, {name: "evil"})
    assert list(outside.iterdir()) == []
    assert not (tmp_path / "evil.py").exists()


ABROAD = """
import importlib, inspect, pkgutil, sys
from pathlib import Path
from virtualflow.program.overlay import Overlay
from virtualflow.program.manifest import Program

snapshot = Path(sys.argv[1])
reports = type("Reports", (), {"module_loaded": lambda *_: sys.exit("told")})()
Overlay(Program.of(snapshot, "script.py"), snapshot, reports).install()
for name in ("pkg", "pkg.lib", "space.inner", "by_finder", "by_finder.part", "beside", "code"):
    module = importlib.import_module(name)
    assert not hasattr(module, "__file__") or not Path(module.__file__ or "/none").exists(), module
import by_finder, pkg.lib, code
assert code.MINE
assert inspect.getsource(pkg.lib.rate) == "def rate():\\n    return 0.1\\n"
assert [found.name for found in pkgutil.iter_modules(by_finder.__path__)] == ["part"]
assert open(sys.argv[2]).read() == "included" and open(sys.argv[2]).name == sys.argv[2]
"""


def test_the_snapshot_is_enough_where_nothing_else_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Finder:
        def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
            place = home / "project" / "by_finder" / "__init__.py"
            return spec_from_file_location(name, place) if name == "by_finder" else None

    home = tmp_path / "home"
    libraries = library(home / "library", monkeypatch)
    for name in ("library/space/inner.py", "project/by_finder/__init__.py", "project/by_finder/part.py", "beside.py"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("")
    (home / "code.py").write_text("MINE = True")
    (home / "notes.txt").write_text("included")
    script = home / "script.py"
    script.write_text("import pkg.lib, space.inner, by_finder, beside, code")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    taken = take(script, include=["notes.txt"], directory=str(home))
    assert str(libraries) in taken.program.path
    write_modules(tmp_path / "there", taken.modules)
    shutil.rmtree(home)
    monkeypatch.setenv("PYTHONPATH", os.environ["PYTHONPATH"].rpartition(os.pathsep)[0])
    command = [sys.executable, "-c", "import code\n" + ABROAD, str(tmp_path / "there"), str(home / "notes.txt")]
    subprocess.run(command, check=True)


def test_what_does_not_fit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.py"
    script.write_text("import needed")
    for name in ("needed", "a", "b"):
        (tmp_path / f"{name}.py").write_text("")
    monkeypatch.setattr(capture, "MOST_FILES", 3)
    (text,) = take(script).program.left_out
    assert text == f"all files of {tmp_path} (missing: 1, the first is {tmp_path / 'b.py'})"
    monkeypatch.setattr(capture, "MOST_FILES", 1)
    with pytest.raises(LaunchError, match=r"what the script imports: .*needed.py no longer fits"):
        take(script)
    monkeypatch.undo()
    with pytest.raises(LaunchError, match=r"--include \*.yaml: there is no such file"):
        take(script, include=["*.yaml"])


def test_a_copy_that_can_not_be_read_now_ends_no_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "script.py").write_text("")
    take(tmp_path / "script.py").write(tmp_path / "snapshot")
    record = RunningProgram(tmp_path / "snapshot", "script.py")
    assert record.module_loaded("/there/late.py", "late", b"1") is None
    (tmp_path / "snapshot" / record.program.copies["/there/late.py"]).unlink()
    assert record.module_loaded("/there/late.py", "late", b"1") is None
    assert "/there/late.py can't be kept with the job, or compared" in caplog.text


def test_workers_that_have_loaded_two_versions_are_found(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    take(tmp_path / "script.py").write(tmp_path / "snapshot")
    record = RunningProgram(tmp_path / "snapshot", "script.py")
    assert record.module_loaded("/there/late.py", "late", b"1") is None
    assert record.module_loaded("/there/late.py", "late", b"1") is None
    edited = record.module_loaded("/there/late.py", "late", b"2")
    assert "late.py was edited while workers imported it" in (edited or "")
    assert record.file_read("/there/a.json", "1") is None
    assert "a.json was changed while workers read it" in (record.file_read("/there/a.json", "2") or "")
    record.file_written("/there/a.json")
    assert record.file_read("/there/a.json", "2") is None  # the job's own file
    assert Program.of(tmp_path / "snapshot", "").copies["/there/late.py"] == "_elsewhere/there/late.py"
