"""Run an example as a user does, in a process of its own, and read what it printed."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
Result = subprocess.CompletedProcess[str]
Call = Callable[..., Result]


@pytest.fixture
def python(tmp_path: Path) -> Call:
    """``python(script, *options, VARIABLE=value)`` runs ``python examples/script``."""

    def call(script: str, *options: object, **environment: str) -> Result:
        return _run([EXAMPLES / script, *options], tmp_path, environment)

    return call


@pytest.fixture
def vf_run(tmp_path: Path) -> Call:
    """``vf_run(devices, script, *options)`` runs ``vf run --devices N examples/script``."""

    def call(devices: int, script: str, *options: object, **environment: str) -> Result:
        command = ["-m", "virtualflow.cli.main", "run", "--devices", devices, EXAMPLES / script, *options]
        return _run(command, tmp_path, environment)

    return call


@pytest.fixture(scope="session")
def data() -> ModuleType:
    """The module examples/data.py."""
    spec = importlib.util.spec_from_file_location("examples_data", EXAMPLES / "data.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def reviews(data: ModuleType) -> list[tuple[str, int]]:
    return _or_skip(data.movie_reviews)


@pytest.fixture(scope="session")
def verses(data: ModuleType) -> list[str]:
    return _or_skip(data.bible_verses)


@pytest.fixture
def digest() -> Callable[[Result], str]:
    """The digest that a run printed; shows what it printed instead, if it did not."""

    def read(result: Result) -> str:
        digest = re.search(r"^digest (\w{64})$", result.stdout, re.MULTILINE)
        assert result.returncode == 0, result.stdout + result.stderr
        assert digest, result.stdout + result.stderr
        return digest[1]

    return read


def _or_skip(load: Callable[[], list]) -> list:
    try:
        return load()
    except SystemExit as missing:
        pytest.skip(str(missing))  # names what to install


def _run(command: list[object], folder: Path, environment: dict[str, str]) -> Result:
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        # One thread, also where nothing pins it: threads that wait for each other make a busy machine slow.
        env={**os.environ, "VF_HOME": str(folder), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=280,  # ten seconds each on a free machine, but tests may share a busy one
    )
