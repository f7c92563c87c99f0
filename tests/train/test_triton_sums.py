"""The sums in one launch, in Triton's interpreter: it reads its variable when it is imported."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.checked_apart import failures, names_in
from virtualflow.train import kernel

CHECKS = Path(__file__).with_name("triton_checks.py")
pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="pip install triton"),
    pytest.mark.skipif(kernel.load() is None, reason="no C compiler; install gcc"),
    pytest.mark.timeout(400),
]


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return failures([CHECKS], {"TRITON_INTERPRET": "1"}, tmp_path_factory.mktemp("checks"))


@pytest.mark.parametrize("name", names_in([CHECKS]))
def test_in_the_interpreter(failed: dict[str, list[str]], name: str) -> None:
    assert failed[name] == []
