"""The CUDA device for tests is itself tested, and so is what a step asks of it, in processes that have it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import fakecuda
from tests.checked_apart import failures, names_in
from tests.fakecuda import build

CHECKS = [Path(__file__).with_name(f"{name}.py") for name in ("checks", "engine_checks", "group_checks")]
pytestmark = [
    pytest.mark.skipif(build.why_not() is not None, reason=build.why_not() or ""),
    pytest.mark.timeout(600),
]


def test_no_two_machines_have_a_device_in_common() -> None:
    # A test that holds its devices until its process ends must not take those of the next one.
    assert fakecuda.environment(2)[fakecuda.MACHINE] != fakecuda.environment(2)[fakecuda.MACHINE]


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return failures([*CHECKS, *fakecuda.RUN_AGAIN], fakecuda.environment(2), tmp_path_factory.mktemp("checks"))


@pytest.mark.parametrize("name", names_in(CHECKS))
def test_on_the_device(failed: dict[str, list[str]], name: str) -> None:
    assert failed[name] == []


@pytest.mark.parametrize("file", fakecuda.RUN_AGAIN, ids=lambda file: str(file.stem))
def test_what_holds_on_the_host_holds_on_the_device(failed: dict[str, list[str]], file: Path) -> None:
    found = {name: told for name, told in failed.items() if name.startswith(f"{file.stem}::")}
    assert found
    assert {name: told for name, told in found.items() if told} == {}
