"""Imports point one way: core <- cluster <- sim, core <- train, core and cluster <- runtime, all <- cli, dashboard."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "virtualflow"
MAY_IMPORT = {
    "core": {"core"},
    "cluster": {"core", "cluster"},
    "sim": {"core", "cluster", "sim"},
    "train": {"core", "train"},
    "runtime": {"core", "cluster", "runtime"},
    "cli": {"core", "cluster", "sim", "train", "runtime", "cli", "dashboard"},
    "dashboard": {"core", "cluster", "sim", "train", "runtime", "dashboard"},
}
JOINS_TRAIN_AND_RUNTIME = "runtime/worker.py"
IMPORTS_RAY = "runtime/ray.py"
IMPORTS_TORCH = ("train/", "runtime/worker.py", "runtime/rendezvous.py")


def imported_by(file: Path, *, at_top: bool = False) -> set[str]:
    tree = ast.parse(file.read_text())
    nodes = tree.body if at_top else list(ast.walk(tree))
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda file: str(file.relative_to(SOURCE)))
def test_imports_point_one_way(file: Path) -> None:
    place = str(file.relative_to(SOURCE))
    layer = place.split("/")[0]
    allowed = MAY_IMPORT.get(layer)
    if allowed is None or place == JOINS_TRAIN_AND_RUNTIME:
        return
    for name in imported_by(file):
        parts = name.split(".")
        if parts[0] == "virtualflow" and len(parts) > 1 and parts[1] in MAY_IMPORT:
            assert parts[1] in allowed, f"{place} imports {name}"


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda file: str(file.relative_to(SOURCE)))
def test_few_files_import_torch(file: Path) -> None:
    place = str(file.relative_to(SOURCE))
    if not place.startswith(IMPORTS_TORCH):
        heavy = {name for name in imported_by(file, at_top=True) if name.split(".")[0] in ("torch", "matplotlib")}
        assert not heavy


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda file: str(file.relative_to(SOURCE)))
def test_one_file_imports_ray(file: Path) -> None:
    imports_it = any(name.split(".")[0] == "ray" for name in imported_by(file))
    assert imports_it == (str(file.relative_to(SOURCE)) == IMPORTS_RAY)


@pytest.mark.parametrize("module", ["virtualflow", "virtualflow.cli.main", "virtualflow.runtime.coordinator"])
def test_importing_imports_neither_torch_nor_ray(module: str) -> None:
    program = f"import sys, {module}; sys.exit('torch' in sys.modules or 'ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
