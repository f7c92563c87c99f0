"""What a script is made of, found without running it; and what a certificate says of it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest

from virtualflow.events import StepDone
from virtualflow.events.certificate import Certificate, compare
from virtualflow.program import provenance, source
from virtualflow.program.revision import revision_of
from virtualflow.system.hash_seed import hash_seed_of


def write(folder: Path, **files: str) -> None:
    """``pkg__lib`` stands for pkg/lib.py."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py".replace("/init/.py", "/__init__.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def reach(script: Path, *path: Path) -> source.Reach:
    return source.reach(
        script, source.search_path(str(script.resolve().parent), {"PYTHONPATH": os.pathsep.join(map(str, path))})
    )


def test_imports_are_followed_wherever_they_lie_and_run_nothing(tmp_path: Path) -> None:
    scripts, libraries = tmp_path / "scripts", tmp_path / "libraries"
    write(
        scripts,
        train="import beside, json, torch, virtualflow\nfrom pkg.models import net\nraise SystemExit",
        beside="",
    )
    write(
        libraries,
        pkg__init__="raise SystemExit",
        pkg__models__init__="",
        pkg__models__net="from ..losses import mean\nfrom . import parts\ndef lazy():\n    import space.inner",
        pkg__models__parts="import importlib\nimportlib.import_module('single')",
        pkg__losses="",
        pkg__unused="",
        space__inner="import not_there",
        single="def broken(:",
    )
    result = reach(scripts / "train.py", libraries)
    assert sorted(result.modules) == [
        "__main__", "beside", "pkg", "pkg.losses", "pkg.models", "pkg.models.net", "pkg.models.parts", "single",
        "space.inner",
    ]  # fmt: skip
    folders = {str(libraries / "pkg"), str(libraries / "space")}
    assert set(result.trees) == folders | {str(libraries / "single.py"), str(scripts / "beside.py")}


def test_a_package_goes_before_folders_of_its_name_as_python_has_it(tmp_path: Path) -> None:
    scripts, library = tmp_path / "scripts", tmp_path / "library"
    write(scripts, train="import pkg.part, json", pkg__data="", json="")
    write(library, pkg__init__="", pkg__part="")
    result = reach(scripts / "train.py", library)
    assert result.modules["pkg.part"] == str(library / "pkg" / "part.py")
    assert result.modules["json"] == str(scripts / "json.py")


def test_editable_installs_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Finder:
        def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
            place = tmp_path / "project" / "by_finder" / "__init__.py"
            return spec_from_file_location(name, place) if name == "by_finder" else None

    write(tmp_path, train="import by_finder.part, by_path, by_link")
    write(tmp_path / "project", by_finder__init__="", by_finder__part="", by_path="", by_link__init__="")
    packages = tmp_path / "venv" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "by_link").symlink_to(tmp_path / "project" / "by_link")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "project"), str(packages)])
    result = reach(tmp_path / "train.py")
    assert set(result.modules) == {"__main__", "by_finder", "by_finder.part", "by_path", "by_link"}
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(tmp_path / "project")])
    result = reach(tmp_path / "train.py")
    assert result.named == {"by_finder": str(tmp_path / "project" / "by_finder" / "__init__.py")}
    assert set(result.modules) == {"__main__", "by_finder", "by_finder.part", "by_link"}


def test_the_commit_is_told_and_whether_files_were_changed(tmp_path: Path) -> None:
    assert revision_of(str(tmp_path)) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=me", "-c", "user.email=me@here"]
    (tmp_path / "train.py").write_text("1")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)
    clean = revision_of(str(tmp_path))
    assert clean is not None
    assert not clean.dirty
    (tmp_path / "train.py").write_text("2")
    dirty = revision_of(str(tmp_path))
    assert dirty is not None
    assert dirty.dirty
    assert dirty.commit == clean.commit
    assert str(dirty) == f"{clean.commit[:12]} and changes"


def certificate(chain: str = "a", **facts: object) -> Certificate:
    step = StepDone(0, 0, 1.0, "0x1", "0x1", "ids", chain, 8, 0.1, 1, None)
    return Certificate({"reduction": "exact", **facts}, {0: step}, {})


def test_verify_names_modules_and_files_that_differ() -> None:
    def facts(text: bytes) -> dict[str, object]:
        return provenance.code_facts({"__main__": "/train.py", "pkg.lib": "/lib.py"}, {
            "/train.py": b"", "/lib.py": text}.__getitem__, "0123456789ab")  # fmt: skip

    one = certificate(**facts(b"1"), files={"a.json": "1"})
    assert compare(one, certificate(**facts(b"1"), files={"a.json": "1"})).facts == ()
    (code, file) = compare(one, certificate(**facts(b"2"), files={"a.json": "2"})).facts
    assert code.startswith("the code: ")
    assert code.endswith("(commit 0123456789ab), in pkg.lib")
    assert file == "the file a.json: 1 and 2"
    assert compare(one, certificate()).facts == ()  # a run that does not say


def test_verify_tells_of_the_hash_seed_only_if_the_runs_differ() -> None:
    one, other = certificate(hash_seed="random"), certificate(hash_seed="0")
    assert compare(one, other).facts == ()
    assert compare(one, certificate("b", hash_seed="0")).facts == ("PYTHONHASHSEED: random and 0",)
    assert compare(other, certificate("b", hash_seed="0")).facts == ()


def test_a_job_has_a_hash_seed() -> None:
    assert [hash_seed_of({"PYTHONHASHSEED": text}) for text in ("7", "007", "random", "", "-1", str(2**32))] == [
        "7", "7", "0", "0", "0", "0",
    ]  # fmt: skip
    assert hash_seed_of({}) == "0"
