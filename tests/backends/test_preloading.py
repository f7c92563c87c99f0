"""A package that can't be imported before a fork is found out, and left to the workers."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Launcher, Printed
from tests.job.driven import TRAIN
from virtualflow.backends.local import LocalBackend
from virtualflow.backends.preload_imports import preload
from virtualflow.job.folder import JobFolder, JobSpec
from virtualflow.job.serve import run_job as serve

PACKAGES = {
    "vf_calm": "from vf_calm_inner import part",
    "vf_calm_inner": """
import sys, weakref
class part: pass
weakref.finalize(part, sys.stderr.write, "a package ends")
""",
    "vf_broken": "import vf_calm_inner\nraise OSError('no licence')",
    "vf_ends": "raise SystemExit(3)",
    "vf_threads": "import threading\nended = threading.Event()\nthreading.Thread(target=ended.wait).start()",
    "vf_allocates": """
import threading
ended, named = threading.Event(), threading.Event()
def run():
    with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as name:
        name.write("jemalloc_bg_thd")
    named.set()
    ended.wait()
threading.Thread(target=run).start()
named.wait()
""",
    "vf_starts": "import subprocess\nchild = subprocess.Popen(['sleep', '60'])",
    "vf_looks": "import torch\ntry: torch._C._accelerator_hooks_device_count()\nexcept RuntimeError: pass",
}
SCRIPT = """
import sys
before = {name for name in ("vf_calm", "vf_calm_inner", "vf_broken", "scipy.stats") if name in sys.modules}
import scipy.stats, weakref
print("before", *sorted(before))
weakref.finalize(scipy.stats, sys.stderr.write, "the script ends")
pace = lambda trainer: None
"""


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Path]:
    """A folder with packages that counts as one of installed ones."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    for name, text in PACKAGES.items():
        (folder / f"{name}.py").write_text(text)
    sys.path.append(str(folder))
    yield folder
    sys.path.remove(str(folder))
    for name in PACKAGES:
        module = sys.modules.pop(name, None)
        if isinstance(ended := getattr(module, "ended", None), threading.Event):
            ended.set()
        if (child := getattr(module, "child", None)) is not None:
            child.kill()
            child.wait()


@pytest.mark.parametrize(
    ("names", "package", "reason"),
    [
        (["vf_calm", "vf_broken"], "vf_broken", "OSError: no licence"),
        (["vf_ends.part"], "vf_ends", "SystemExit: 3"),
        (["vf_calm", "vf_threads"], "vf_threads", "starts a thread"),
        (["vf_starts"], "vf_starts", "starts a process"),
        (["vf_looks"], "vf_looks", "looks for accelerators"),
        (["vf_calm.nothing"], "vf_calm", "ModuleNotFoundError"),
    ],
)
def test_an_import_that_would_spoil_the_process_is_found(
    installed: Path, names: list[str], package: str, reason: str
) -> None:
    result = preload(names)
    assert result is not None
    assert result.package == package
    assert reason in result.reason


def test_what_is_suitable_is_loaded_with_what_a_package_loads_only_when_asked(installed: Path) -> None:
    assert preload(["vf_calm.part", "torch.nn", "vf_calm"]) is None
    assert "vf_calm_inner" in sys.modules


def test_a_thread_that_survives_a_fork_does_not_count(installed: Path) -> None:
    assert preload(["vf_allocates"]) is None


def test_modules_beside_the_script_are_never_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vf_own.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    path = sys.path[:]
    result = preload(["vf_own"])
    assert result is not None
    assert "ModuleNotFoundError" in result.reason
    assert sys.path == path


def test_workers_start_with_what_is_suitable_and_import_the_rest_themselves(
    installed: Path, tmp_path: Path, run_job: Launcher, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + TRAIN.replace("20", "1") + "print(trainer.digest())")
    environment = {"PYTHONPATH": f"{installed}:{':'.join(sys.path)}"}
    with LocalBackend(environment=environment, preload=["vf_broken", "vf_calm.part"]) as own:
        finished = Launcher(own, tmp_path / "jobs")(script, 2)
    assert "vf_broken is imported by each worker, and not before they start: OSError" in capfd.readouterr().err
    plain = run_job(script)
    assert finished.digest == plain.digest
    assert [job.out().splitlines()[0] for job in (finished, plain)] == ["before vf_calm vf_calm_inner", "before"]
    assert finished.err() == "the script ends"  # what was loaded before the fork lives on in the fork server


def test_by_default_it_is_what_the_script_imports(tmp_path: Path) -> None:
    script, folder, printed = tmp_path / "script.py", JobFolder(tmp_path / "job"), Printed()
    script.write_text(SCRIPT)
    folder.create(JobSpec.of("job", str(script), (), ("0",)))
    assert serve(folder, printed).code == 0
    assert printed.text["0", "stdout"] == b"before scipy.stats\n"
