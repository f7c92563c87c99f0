"""``-m``: a module runs in a job as ``python -m`` runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.job.driven import PACE, TRAIN, Driven, to
from virtualflow.backends.local import LocalBackend
from virtualflow.core.job_description import JobDescription
from virtualflow.events.certificate import compare
from virtualflow.manager.submission import Submission
from virtualflow.program import source
from virtualflow.program.capture import take
from virtualflow.program.manifest import Program, write_modules

pytestmark = pytest.mark.timeout(400)  # a busy machine decides nothing

LOOK = """
import json, sys
from . import rates
from .rates import RATE
import beside
names = ("__name__", "__package__", "__file__", "__cached__")
seen = {name: globals()[name] for name in names}
seen |= {"spec": __spec__.name, "parent": __spec__.parent, "argv": sys.argv[0], "path": sys.path[0]}
seen |= {"rate": RATE, "rates": rates.__name__, "modules": sorted({"pkg", "pkg.inner"} & {*sys.modules})}
print(json.dumps(seen))
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a package in it, from which the job is started."""
    inner = tmp_path / "project" / "pkg" / "inner"
    inner.mkdir(parents=True)
    for file in (inner.parent / "__init__.py", inner / "__init__.py"):
        file.touch()
    (inner / "rates.py").write_text("RATE = 0.5\n")
    (inner / "look.py").write_text(LOOK)
    (inner / "__main__.py").write_text(LOOK)
    (tmp_path / "project" / "beside.py").touch()
    (tmp_path / "project" / "look.py").write_text("raise SystemExit('the wrong one')\n")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


@pytest.mark.parametrize(
    ("name", "full", "file"),
    [
        ("pkg.inner.look", "pkg.inner.look", "pkg/inner/look.py"),
        ("pkg.inner", "pkg.inner.__main__", "pkg/inner/__main__.py"),
        ("look", "look", "look.py"),
    ],
)
def test_a_module_is_found_from_the_current_folder(project: Path, name: str, full: str, file: str) -> None:
    assert source.module_to_run(name, [str(project)]) == (full, str(project / file))


@pytest.mark.parametrize("name", ["pkg.missing", "missing", "pkg", "pkg.inner.look.x", "", ".look"])
def test_what_is_no_module_that_can_be_run_is_not_found(project: Path, name: str) -> None:
    assert source.module_to_run(name, [str(project)]) is None


def test_the_snapshot_has_the_packages_and_what_lies_in_the_current_folder(project: Path) -> None:
    program = take(project / "pkg" / "inner" / "look.py", module="pkg.inner.look").program
    assert (program.folder, program.package) == (str(project), "pkg.inner")
    assert {"pkg", "pkg.inner", "pkg.inner.rates", "beside", "__main__"} <= program.modules.keys()
    assert {str(project / name) for name in ("look.py", "pkg/inner/look.py")} <= program.copies.keys()
    assert len(set(program.copies.values())) == len(program.copies)


def test_a_package_gives_its_job_a_name() -> None:
    assert JobDescription("/a/pkg/__main__.py").title == "pkg"


def test_a_submitted_module_arrives_as_a_module(project: Path, tmp_path: Path) -> None:
    script = project / "pkg" / "inner" / "look.py"
    modules = take(script, module="pkg.inner.look", waits=True).modules
    Submission(JobDescription(str(script)), modules).check(devices=1)
    write_modules(tmp_path / "snapshot", modules)
    assert Program.of(tmp_path / "snapshot", str(script)).module == "pkg.inner.look"


@pytest.mark.parametrize("name", ["pkg.inner.look", "pkg.inner"])
def test_a_module_sees_what_python_m_shows_it(project: Path, backend: LocalBackend, tmp_path: Path, name: str) -> None:
    command = [sys.executable, "-m", name]
    plain = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=True)
    module, file = source.module_to_run(name, [str(project)]) or ("", "")
    driven = Driven(backend, tmp_path / "job", "")
    driven.script, driven.module = Path(file), module
    finished = driven.run()
    assert finished.outcome.code == 0, finished.failure
    assert json.loads(finished.out()) == json.loads(plain.stdout)


def test_a_module_gives_the_same_bits_on_any_number_of_devices_and_to_a_joiner(
    project: Path, backend: LocalBackend, tmp_path: Path
) -> None:
    script = project / "pkg" / "inner" / "train.py"
    relative = TRAIN.replace("make(mlp())", "make(mlp(), clip_grad_norm=RATE)")
    script.write_text(f"{PACE}\nfrom .rates import RATE\n{relative}\nprint(trainer.digest())\n")

    def run(name: str, devices: int, plan: object = ()):  # type: ignore[no-untyped-def]
        driven = Driven(backend, tmp_path / name, "")
        driven.script, driven.module = script, "pkg.inner.train"
        return driven.run(devices, plan)  # type: ignore[arg-type]

    def edit(_: object) -> None:
        (project / "pkg" / "inner" / "rates.py").write_text("RATE = 0.1\n")

    one, two = run("one", 1), run("two", 2)
    grown = run("grown", 1, [(3, edit), (4, to(2))])
    assert one.digest == two.digest == grown.digest
    assert [len(change.devices) for change in grown.changes] == [2]
    for other in (two, grown):
        assert compare(one.certificate, other.certificate).equal
