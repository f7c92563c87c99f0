"""Imports point one way, as docs/design.md draws it; and what it draws is what there is."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from virtualflow.core.job_state import JobState

SOURCE = Path(__file__).parent.parent / "src" / "virtualflow"
DESIGN = SOURCE.parent.parent / "docs" / "design.md"
BELOW = {  # what each folder may import besides itself
    "system": set(),
    "events": {"system"},
    "core": set(),
    "program": {"system"},
    "porting": set(),
    "solver": {"core"},
    "streams": {"core"},
    "loggers": {"events"},
    "train": {"core", "events", "system", "program", "streams", "loggers"},
    "cluster": {"core", "events", "solver"},
    "sim": {"core", "events", "solver", "cluster"},
    "job": {"core", "events", "system", "program", "solver"},
    "backends": {"core", "events", "system", "program", "cluster", "job"},
    "profiling": {"core", "events", "system", "job", "backends"},
    "replaying": {"core", "events", "system", "program", "job"},
    "manager": {"core", "events", "system", "program", "solver", "cluster", "job", "backends"},
    "dashboard": {"core", "events", "cluster", "sim"},
}
BELOW["lightning"] = {"core", "train"}
BELOW["selftest"] = {"core", "events", "job", "backends", "train"}
BELOW["cli"] = {*BELOW}
BELOW["transformers"] = {"core", "train"}
BELOW["testing"] = {"core", "job", "train"}
MEETINGS = {"job/worker.py": "train", "job/serve.py": "backends"}  # files that join two sides, by name
PURE = ("core", "cluster", "porting")  # no clock, no environment, no files, no processes
IMPURE = {"os", "time", "secrets", "subprocess", "socket", "ctypes", "shutil", "tempfile", "sqlite3"}
IMPORTS_RAY = "backends/ray_connection.py"
LIBRARIES = {  # that people bring: who imports each
    "lightning": ("lightning/",),
    "transformers": ("transformers/",),
    "peft": ("transformers/",),
    "accelerate": ("accelerate.py", "transformers/"),
}
IMPORTS_TORCH = (
    "train/",
    "lightning/",
    "accelerate.py",
    "job/worker.py",
    "job/group_posts.py",
    "job/rendezvous.py",
    "job/group_works.py",
    "job/device_collectives.py",
    "selftest/programs/",
    "transformers/",
)
# Titles of columns, and others' words, that look like states.
NO_STATES = {"cli/job_table.py": {"QUEUED"}, "loggers/mlflow_runs.py": {"RUNNING"}}
STAND_INS = ("accelerate.py", "transformers/hf_trainer.py")  # whose classes have the names of those that they stand for
# Commands; programs of their own; what a plain script shows of its job, and what Python shows of sys.exit("text").
PRINT = ("cli/", "selftest/programs/", "job/serve.py", "job/plain_script.py", "program/runner.py")
END_THEIR_PROCESS = ("cli/", "job/serve.py", "backends/forkserver.py")
FILES = sorted(SOURCE.rglob("*.py"))


def place_of(file: Path) -> str:
    return str(file.relative_to(SOURCE))


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def imported_by(file: Path, *, at_top: bool = False) -> set[str]:
    nodes = tree_of(file).body if at_top else list(ast.walk(tree_of(file)))
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def libraries_of(file: Path, *, at_top: bool = False) -> set[str]:
    return {name.split(".")[0] for name in imported_by(file, at_top=at_top)}


def test_imports_point_one_way() -> None:
    for file in FILES:
        place = place_of(file)
        folder = place.split("/")[0]
        allowed = {folder, *BELOW.get(folder, BELOW), MEETINGS.get(place, folder)}
        for name in imported_by(file):
            parts = name.split(".")
            if parts[0] == "virtualflow" and len(parts) > 1 and parts[1] in BELOW:
                assert parts[1] in allowed, f"{place} imports {name}"


def test_what_is_pure_imports_nothing_that_is_not() -> None:
    for file in FILES:
        if place_of(file).startswith(PURE):
            assert not libraries_of(file) & IMPURE, place_of(file)
            called = {node.func for node in ast.walk(tree_of(file)) if isinstance(node, ast.Call)}
            names = {getattr(function, "id", getattr(function, "attr", "")) for function in called}
            files = {"open", "read_text", "write_text", "read_bytes", "write_bytes", "exists", "print"}
            assert not names & files, place_of(file)


def called_names(file: Path) -> set[str]:
    """The plain names that a file calls or raises: ``print``, ``SystemExit``, ``sys.exit``."""
    calls = [node.func for node in ast.walk(tree_of(file)) if isinstance(node, ast.Call)]
    raised = [node.exc for node in ast.walk(tree_of(file)) if isinstance(node, ast.Raise) and node.exc is not None]
    return {ast.unparse(node) for node in (*calls, *raised)}


def test_a_library_prints_nothing() -> None:
    for file in FILES:
        if not place_of(file).startswith(PRINT):
            assert "print" not in called_names(file), place_of(file)


def test_a_library_ends_no_process() -> None:
    for file in FILES:
        if not place_of(file).startswith(END_THEIR_PROCESS):
            assert not called_names(file) & {"sys.exit", "exit", "SystemExit"}, place_of(file)


def test_few_files_import_torch() -> None:
    for file in FILES:
        if not place_of(file).startswith(IMPORTS_TORCH):
            assert not libraries_of(file, at_top=True) & {"torch", "matplotlib"}, place_of(file)


def test_the_states_of_a_job_are_an_enum() -> None:
    for file in FILES:
        if place_of(file) != "core/job_state.py":
            texts = {node.value for node in ast.walk(tree_of(file)) if isinstance(node, ast.Constant)}
            assert not texts & set(JobState) - NO_STATES.get(place_of(file), set()), place_of(file)


def test_one_file_imports_ray() -> None:
    assert [place_of(file) for file in FILES if "ray" in libraries_of(file)] == [IMPORTS_RAY]


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_people_bring_is_imported_in_its_own_place(library: str) -> None:
    for file in FILES:
        if not place_of(file).startswith(LIBRARIES[library]):
            assert library not in libraries_of(file), place_of(file)


@pytest.mark.parametrize("module", ["virtualflow", "virtualflow.cli.main", "virtualflow.job.coordinator"])
def test_importing_imports_neither_torch_nor_ray(module: str) -> None:
    program = f"import sys, {module}; sys.exit('torch' in sys.modules or 'ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


def test_no_two_modules_have_the_same_name() -> None:
    places = defaultdict(list)
    for file in FILES:
        if file.stem != "__init__" and file.parent.name not in ("cli", "policies"):  # named after verbs and policies
            places[file.stem].append(place_of(file))
    assert not {name: result for name, result in places.items() if len(result) > 1}


def public_types(file: Path) -> dict[str, str]:
    """Classes, and names for other types (``Event = Started | Ended``), with how each is defined."""
    types: dict[str, str] = {}
    for node in tree_of(file).body:
        if isinstance(node, ast.ClassDef):
            types[node.name] = f"class of {place_of(file)}"
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = ast.unparse(node.value)
            if re.match(r"[A-Z]\w*[a-z]", node.targets[0].id) and not value.startswith("TypeVar("):
                types[node.targets[0].id] = value
    return {name: value for name, value in types.items() if not name.startswith("_")}


def test_no_two_public_types_have_the_same_name() -> None:
    places = defaultdict(dict)
    for file in FILES:
        for name, value in public_types(file).items() if place_of(file) not in STAND_INS else ():
            places[name].setdefault(value, place_of(file))
    for name, values in places.items():
        assert len(values) == 1, f"{name} is defined in {list(values.values())}"


def test_every_folder_says_what_lives_there() -> None:
    for file in FILES:
        if file.name == "__init__.py" and file.parent != SOURCE:
            assert len((ast.get_docstring(tree_of(file)) or "").split()) > 10, place_of(file)


def test_every_folder_says_where_to_start_reading() -> None:
    for file in FILES:
        modules = {other.stem for other in file.parent.glob("*.py")} - {"__init__"}
        if file.name == "__init__.py" and file.parent != SOURCE and len(modules) > 1:
            text = ast.get_docstring(tree_of(file)) or ""
            assert re.search(r"[Ss]tart (there|with)", text), place_of(file)


def test_the_design_document_draws_every_folder_and_module() -> None:
    (tree,) = re.findall(r"```\nsrc/virtualflow/\n(.*?)```", DESIGN.read_text(), re.S)
    drawn: dict[str, set[str]] = {}
    folder = ""
    for line in tree.splitlines():
        if result := re.match(r"  ([a-z_/]+)/ ", line):
            folder = result[1]
            drawn[folder] = set()
        elif not line.startswith("   "):
            folder = ""
        if folder:
            drawn[folder] |= set(re.findall(r"[a-z_]+", line.partition("/ ")[2] if result else line))
    real = {place_of(file.parent) for file in FILES if file.parent != SOURCE} - {"cli"}
    assert {folder for folder in drawn if (SOURCE / folder).is_dir()} >= real
    for file in FILES:
        folder = place_of(file.parent)
        if folder in real and file.stem != "__init__":
            assert file.stem in drawn[folder], f"docs/design.md does not draw {place_of(file)}"


BEGINNINGS = {"__init__", "__post_init__", "__enter__", "__setstate__"}
BORN_LATER = {  # by the one method that has to be called first
    "CellRunner": {"_attempt", "_feed", "_crossings", "_results", "_grid", "_device", "_rank_of"},  # run
    "TorchGroup": {"_patience", "_store"},  # form
}


def all_classes() -> list[ast.ClassDef]:
    return [node for file in FILES for node in tree_of(file).body if isinstance(node, ast.ClassDef)]


def assigned_in(function: ast.FunctionDef) -> set[str]:
    """The attributes of its first argument that a method sets."""
    nodes = [node for node in ast.walk(function) if isinstance(node, ast.Attribute)]
    owner = function.args.args[0].arg if function.args.args else ""
    return {node.attr for node in nodes if isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == owner}


def called_on_self(function: ast.FunctionDef) -> set[str]:
    calls = [ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)]
    return {call.removeprefix("self.").removeprefix("super().") for call in calls}


def methods_of(cls: ast.ClassDef) -> list[ast.FunctionDef]:
    return [node for node in cls.body if isinstance(node, ast.FunctionDef)]


def decorators_of(function: ast.FunctionDef) -> set[str]:
    return {ast.unparse(node) for node in function.decorator_list}


def born_late(cls: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> set[str]:
    """Attributes that neither a beginning of an object sets, nor a method that one calls; none if a base is foreign."""
    family, bases = [cls], [cls]
    while bases:
        names = {ast.unparse(base).partition("[")[0] for base in bases.pop().bases} - {"ABC", "Protocol", "Generic"}
        if not names <= classes.keys():
            return set()  # what that one sets is not known here
        bases += [classes[name] for name in names]
        family += [classes[name] for name in names]
    methods = [method for member in family for method in methods_of(member)]
    setters = {method.name for method in methods if f"{method.name}.setter" in decorators_of(method)}
    reached, names = set[str](), set(BEGINNINGS)
    while names:
        reached |= names
        names = {call for method in methods if method.name in names for call in called_on_self(method)} - reached
    fields = [node for member in family for node in member.body if isinstance(node, (ast.Assign, ast.AnnAssign))]
    declared = {ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target) for node in fields}
    born = {name for method in methods if method.name in reached for name in assigned_in(method)} | declared
    later = {name for method in methods_of(cls) if method.name not in reached for name in assigned_in(method)}
    return later - born - setters


def test_objects_have_all_their_attributes_from_the_beginning() -> None:
    classes = {cls.name: cls for cls in all_classes()}
    late = {name: names for name, cls in classes.items() if (names := born_late(cls, classes))}
    assert late == BORN_LATER


def test_what_is_read_as_a_property_changes_nothing() -> None:
    for cls in all_classes():
        for method in methods_of(cls):
            if "property" in decorators_of(method):
                assert not assigned_in(method), f"{cls.name}.{method.name}"
