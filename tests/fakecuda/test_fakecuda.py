"""The CUDA device for tests is itself tested, in a process that has it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests import fakecuda
from tests.fakecuda import build

CHECKS = Path(__file__).with_name("checks.py")
NAMES = [each.name for each in ast.parse(CHECKS.read_text()).body if getattr(each, "name", "").startswith("test_")]
pytestmark = pytest.mark.skipif(build.why_not() is not None, reason=build.why_not() or "")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What went wrong in each check."""
    report = tmp_path_factory.mktemp("checks") / "report.xml"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--timeout", "300", f"--junit-xml={report}"]
    subprocess.run([*command, str(CHECKS)], env=os.environ | fakecuda.environment(2), capture_output=True, check=False)
    found: dict[str, list[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = str(case.get("name")).partition("[")[0]
        found.setdefault(name, []).extend(str(failure.text) for failure in case if failure.tag in ("failure", "error"))
    return found


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", NAMES)
def test_the_device_is_like_a_gpu(outcomes: dict[str, list[str]], name: str) -> None:
    assert outcomes[name] == []
