"""A SIGKILL at every named point, of the lead and of others: the job goes on within the step, with the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.harness import Chaos, Strike, assert_undisturbed
from tests.conftest import Finished
from virtualflow.backends.local import LocalBackend

IN_THE_STEP = [
    "forward",
    "backward",
    "bucket",
    "before the scalars",
    "after the scalars",
    "optimizer",
    "after the commit",
]


@pytest.fixture(scope="module")
def calm(cpus: LocalBackend, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    finished = Chaos(cpus, tmp_path_factory.mktemp("calm") / "job", devices=1).run()
    assert finished.outcome.code == 0, finished.failure
    return finished


def struck(folder: Path) -> int:
    return len(list((folder / "ids").glob("struck-*")))


@pytest.mark.on_cuda_too(some=["0"])
@pytest.mark.parametrize("device", ["0", "3"])
@pytest.mark.parametrize("point", IN_THE_STEP)
def test_a_worker_killed_in_a_step(
    backend: LocalBackend, tmp_path: Path, calm: Finished, point: str, device: str
) -> None:
    finished = Chaos(backend, tmp_path / "job").run(faults=[(device, point, 17)])
    assert struck(finished.folder) == 1
    assert_undisturbed(finished, calm)


@pytest.mark.on_cuda_too(some=[])
def test_two_killed_at_once(backend: LocalBackend, tmp_path: Path, calm: Finished) -> None:
    finished = Chaos(backend, tmp_path / "job").run(faults=[("0", "backward", 9), ("2", "backward", 9)])
    assert struck(finished.folder) == 2
    assert_undisturbed(finished, calm)


@pytest.mark.on_cuda_too(some=["1"])
@pytest.mark.parametrize("device", ["1", "4"])
@pytest.mark.parametrize("point", ["form group", "compare connections"])
def test_another_one_killed_while_the_others_regroup(
    backend: LocalBackend, tmp_path: Path, calm: Finished, point: str, device: str
) -> None:
    finished = Chaos(backend, tmp_path / "job").run(faults=[("0", "backward", 9), (device, point, 1)])
    assert struck(finished.folder) == 2
    assert_undisturbed(finished, calm)


@pytest.mark.on_cuda_too
def test_all_but_one_killed(backend: LocalBackend, tmp_path: Path, calm: Finished) -> None:
    finished = Chaos(backend, tmp_path / "job").run(faults=[(d, "bucket", 5) for d in "0134"])
    assert struck(finished.folder) == 4
    assert_undisturbed(finished, calm)


@pytest.mark.on_cuda_too(some=[])
def test_down_to_one_device_and_up_again(backend: LocalBackend, tmp_path: Path, calm: Finished) -> None:
    chaos = Chaos(backend, tmp_path / "job", devices=3)
    finished = chaos.run_held([Strike(3, "resize", devices=1), Strike(8, "resize", devices=4)])
    assert_undisturbed(finished, calm)
    assert [len(change.devices) for change in finished.changes] == [1, 4]


@pytest.mark.on_cuda_too(some=["3"])
@pytest.mark.parametrize("point", ["evaluate"])
@pytest.mark.parametrize("device", ["0", "3"])
def test_a_worker_killed_in_evaluate(
    backend: LocalBackend, tmp_path: Path, calm: Finished, point: str, device: str
) -> None:
    finished = Chaos(backend, tmp_path / "job").run(faults=[(device, point, 5)])
    assert struck(finished.folder) == 1
    assert_undisturbed(finished, calm)


@pytest.mark.on_cuda_too
def test_a_save_whose_writer_dies_is_finished_by_the_next_lead(
    backend: LocalBackend, tmp_path: Path, calm: Finished
) -> None:
    path = tmp_path / "c.pt"
    finished = Chaos(backend, tmp_path / "job").run(faults=[("0", "save", 1)], save=str(path))
    assert struck(finished.folder) == 1
    assert_undisturbed(finished, calm)
    assert path.exists()


@pytest.mark.on_cuda_too(some=["receive state"])
@pytest.mark.parametrize(("device", "point"), [("0", "send state"), ("5", "receive state"), ("5", "joining")])
def test_a_worker_killed_while_the_state_moves(
    backend: LocalBackend, tmp_path: Path, calm: Finished, device: str, point: str
) -> None:
    chaos = Chaos(backend, tmp_path / "job")
    finished = chaos.run_held([Strike(2, "resize", devices=6)], faults=[(device, point, 1)], epochs=4)
    assert struck(finished.folder) == 1
    assert_undisturbed(finished, calm)
