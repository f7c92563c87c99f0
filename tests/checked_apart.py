"""Checks that need a process of their own: with other variables, set before torch is imported."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from pathlib import Path


def names_in(files: Sequence[Path]) -> list[str]:
    """The tests in some files, each with the name of its file."""
    return [
        f"{file.stem}::{each.name}"
        for file in files
        for each in ast.parse(file.read_text()).body
        if getattr(each, "name", "").startswith("test_")
    ]


def failures(files: Sequence[Path], environment: Mapping[str, str], folder: Path) -> dict[str, list[str]]:
    """What went wrong in each test of some files, in one process with these variables."""
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--timeout", "300", f"--junit-xml={report}"]
    ran = subprocess.run([*command, *map(str, files)], env=os.environ | environment, capture_output=True, check=False)
    assert report.exists(), ran.stderr.decode()
    failed: dict[str, list[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        file = str(case.get("classname")).rpartition(".")[2]
        name = f"{file}::{str(case.get('name')).partition('[')[0]}"
        failed.setdefault(name, []).extend(str(part.text) for part in case if part.tag in ("failure", "error"))
    return failed
