"""Jobs whose state is spread over devices, under fire: each block has a second holder, so a death loses nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.harness import Chaos, Strike, assert_undisturbed, schedule
from tests.conftest import Finished
from virtualflow.backends.local import LocalBackend
from virtualflow.events.certificate import compare

SHARDED: dict[str, Any] = {"sharding": "state", "wide": True, "evaluate": False, "epochs": 3}
IN_THE_STEP = [
    "forward",
    "backward",
    "bucket",
    "before the scalars",
    "after the scalars",
    "share",
    "squares",
    "optimizer",
    "after the update",
    "parameters",
    "after the commit",
]
DEVICES = ["0", "2"]
EVERYTHING = "VF_ALL_GRIDS" in os.environ  # as in make chaos; else the lead and another worker take turns
STRUCK = [(point, device) for place, point in enumerate(IN_THE_STEP) for device in DEVICES
          if EVERYTHING or device == DEVICES[place % 2]]  # fmt: skip


@pytest.fixture(scope="module")
def calm(cpus: LocalBackend, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Not sharded, on one device."""
    folder = tmp_path_factory.mktemp("calm") / "job"
    finished = Chaos(cpus, folder, devices=1).run(**SHARDED | {"sharding": "none"})
    assert finished.outcome.code == 0, finished.failure
    return finished


def struck(folder: Path) -> int:
    return len(list((folder / "ids").glob("struck-*")))


@pytest.mark.on_cuda_too(some=["bucket", "squares", "parameters"])
@pytest.mark.parametrize(("point", "device"), STRUCK)
def test_a_worker_killed_in_a_step(
    backend: LocalBackend, tmp_path: Path, calm: Finished, point: str, device: str
) -> None:
    finished = Chaos(backend, tmp_path / "job", devices=4).run(faults=[(device, point, 5)], **SHARDED)
    assert struck(finished.folder) == 1
    assert_undisturbed(finished, calm)


@pytest.mark.parametrize("point", ["after the update", "parameters", "move state"])
def test_as_many_killed_at_once_as_the_copies_allow_for(
    cpus: LocalBackend, tmp_path: Path, calm: Finished, point: str
) -> None:
    hit = 1 if point == "move state" else 5
    faults = [("0", point, hit), ("2", point, hit)]
    finished = Chaos(cpus, tmp_path / "job", devices=5).run(faults=faults, **SHARDED | {"copies": 3})
    assert struck(finished.folder) == 2
    assert_undisturbed(finished, calm)


def test_more_killed_at_once_than_the_copies_allow_for(cpus: LocalBackend, tmp_path: Path) -> None:
    faults = [(device, "after the update", 5) for device in "012"]
    finished = Chaos(cpus, tmp_path / "job", devices=4).run(faults=faults, **SHARDED)
    assert finished.outcome.code != 0
    assert "nobody holds that of" in finished.failure


def test_a_worker_killed_while_blocks_move(cpus: LocalBackend, tmp_path: Path, calm: Finished) -> None:
    # The first move is that of the start; the second follows the death of another worker.
    faults = [("3", "backward", 30), ("1", "move state", 2)]
    finished = Chaos(cpus, tmp_path / "job", devices=5).run(faults=faults, **SHARDED | {"copies": 3})
    assert struck(finished.folder) == 2
    assert_undisturbed(finished, calm)


@pytest.mark.on_cuda_too
def test_down_to_one_device_and_up_again(backend: LocalBackend, tmp_path: Path, calm: Finished) -> None:
    chaos = Chaos(backend, tmp_path / "job", devices=4)
    strikes = [Strike(2, "resize", devices=1), Strike(5, "resize", devices=4), Strike(8, "resize", devices=2)]
    finished = chaos.run_held(strikes, **SHARDED)
    assert_undisturbed(finished, calm)
    assert [len(change.devices) for change in finished.changes] == [1, 4, 2]


@pytest.mark.parametrize(("device", "point"), [("0", "send state"), ("4", "receive state"), ("4", "joining")])
def test_a_worker_killed_while_others_join(
    cpus: LocalBackend, tmp_path: Path, calm: Finished, device: str, point: str
) -> None:
    chaos = Chaos(cpus, tmp_path / "job", devices=3)
    finished = chaos.run_held([Strike(2, "resize", devices=5)], faults=[(device, point, 1)], **SHARDED)
    assert struck(finished.folder) == 1
    assert_undisturbed(finished, calm)


def test_a_save_whose_writer_dies_is_finished_by_the_next_lead(
    cpus: LocalBackend, tmp_path: Path, calm: Finished
) -> None:
    path = tmp_path / "c.pt"
    finished = Chaos(cpus, tmp_path / "job", devices=3).run(faults=[("0", "save", 1)], save=str(path), **SHARDED)
    assert struck(finished.folder) == 1
    assert_undisturbed(finished, calm)
    assert path.exists()


def test_to_devices_of_which_none_was_there_before(cpus: LocalBackend, tmp_path: Path, calm: Finished) -> None:
    finished = Chaos(cpus, tmp_path / "job", devices=3).run_held([Strike(3, "move", devices=3)], **SHARDED)
    said = [line for device in ("new-0", "new-1", "new-2") for line in finished.out(device).splitlines()]
    assert finished.outcome.code == 0, finished.failure
    assert compare(calm.certificate, finished.certificate).equal
    assert said == calm.out().splitlines()


@pytest.mark.parametrize("resumed_as", ["state", "none"])
def test_stopped_and_resumed_on_fewer_devices(
    cpus: LocalBackend, tmp_path: Path, calm: Finished, resumed_as: str
) -> None:
    stopped = Chaos(cpus, tmp_path / "job", devices=4).run_held([Strike(4, "end")], **SHARDED)
    (checkpoint,) = (stopped.folder / "checkpoints").glob("step-*.pt")
    finished = Chaos(cpus, tmp_path / "job", devices=3).run(
        resume_from=checkpoint, **SHARDED | {"sharding": resumed_as}
    )
    assert finished.out().splitlines() == calm.out().splitlines(), finished.failure
    assert compare(calm.certificate, finished.certificate).equal


def test_automatic_checkpoints_hold_all_of_the_state(cpus: LocalBackend, tmp_path: Path, calm: Finished) -> None:
    finished = Chaos(cpus, tmp_path / "job", devices=3).run(checkpoint_every=4, **SHARDED)
    assert_undisturbed(finished, calm)
    newest = max((finished.folder / "checkpoints").glob("step-*.pt"))
    again = Chaos(cpus, tmp_path / "job", devices=2).run(resume_from=newest, **SHARDED | {"sharding": "none"})
    assert again.out().splitlines() == calm.out().splitlines(), again.failure


@pytest.mark.parametrize("seed", range(3))
def test_a_schedule_of_kills_and_resizes(cpus: LocalBackend, tmp_path: Path, calm: Finished, seed: int) -> None:
    strikes = schedule(seed, 12, len(calm.steps))
    kills = [strike for strike in strikes if strike.kind == "kill"][:2]  # as many as may come at once
    resizes = [strike for strike in strikes if strike.kind == "resize"]
    chaos = Chaos(cpus, tmp_path / "job", devices=4)
    finished = chaos.run_held(sorted([*kills, *resizes], key=lambda strike: strike.step), **SHARDED | {"copies": 3})
    assert_undisturbed(finished, calm)
    assert chaos.done["kill"] + chaos.done["resize"] > 0
