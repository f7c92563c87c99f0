"""What one random schedule does to a job, of each kind, and what must hold after it."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.chaos import test_orphans as orphans
from tests.chaos.attack import Attack
from tests.chaos.harness import Chaos, Strike, assert_undisturbed, schedule
from tests.chaos.series import assert_no_orphans
from tests.conftest import Finished
from virtualflow.backends.local import LocalBackend
from virtualflow.core.faults import POINTS

EPOCHS = 12
STEPS = 6 * EPOCHS
SHORT_EPOCHS = 6
SPARED = 3  # a strike and several faults may come at the same moment


class JobAttack(Attack):
    """Strikes and faults at one job; in each fourth schedule its coordinator dies."""

    def prepare(self, home: Path, accelerator: bool) -> None:
        self._calm = calm_run(self.backend, home, epochs=EPOCHS)
        (home / "orphan").mkdir()
        self._calm_orphan = orphans.run(home / "orphan", "nowhere", devices=1).stdout.splitlines()[-1]

    def schedule(self, seed: int, folder: Path) -> Counter[str]:
        if seed % 4 != 0:
            return strike(self.backend, seed, folder, self._calm)
        with home_of(folder):
            counts = kill_coordinator(seed, folder, self._calm_orphan)
        assert_no_orphans(f"VF_HOME={folder}")
        return counts


class FastAttack(Attack):
    """The paper's own sums: equal up to rounding, each step made once, with layers that are frozen meanwhile."""

    options: ClassVar[dict[str, Any]] = {
        "epochs": SHORT_EPOCHS,
        "evaluate": False,
        "reduction": "fast",
        "frozen_epochs": [1, 2, 4],
    }

    def prepare(self, home: Path, accelerator: bool) -> None:
        self._calm = calm_run(self.backend, home, **self.options)

    def schedule(self, seed: int, folder: Path) -> Counter[str]:
        chaos = Chaos(self.backend, folder / "job", devices=3, patience_seconds=3.0, spared=2)
        finished = chaos.run_held(schedule(seed, 8, 6 * SHORT_EPOCHS, around=True), **self.options)
        assert finished.outcome.code == 0, finished.failure
        assert [step.step for step in finished.steps] == [step.step for step in self._calm.steps]
        losses = [step.loss for step in finished.steps]
        assert losses == pytest.approx([step.loss for step in self._calm.steps], rel=1e-3)
        return chaos.done


class ShardedAttack(Attack):
    """Each block has three holders, so that two deaths at once lose nothing."""

    options: ClassVar[dict[str, Any]] = {"epochs": SHORT_EPOCHS, "evaluate": False, "wide": True}

    def prepare(self, home: Path, accelerator: bool) -> None:
        self._calm = calm_run(self.backend, home, **self.options)

    def schedule(self, seed: int, folder: Path) -> Counter[str]:
        strikes = schedule(seed, 16, 6 * SHORT_EPOCHS)
        kills = [each for each in strikes if each.kind == "kill"][:2]
        resizes = [each for each in strikes if each.kind == "resize"]
        chaos = Chaos(self.backend, folder / "job", devices=4, patience_seconds=3.0)
        finished = chaos.run_held(
            sorted([*kills, *resizes], key=lambda each: each.step), sharding="state", copies=3, **self.options
        )
        assert_undisturbed(finished, self._calm)
        return chaos.done


def calm_run(backend: LocalBackend, home: Path, **options: Any) -> Finished:
    """An undisturbed run on one device."""
    calm = Chaos(backend, home / "calm", devices=1).run(**options)
    assert calm.outcome.code == 0, calm.failure
    return calm


def strike(backend: LocalBackend, seed: int, folder: Path, calm: Finished) -> Counter[str]:
    chance = random.Random(seed)
    faults = aimed(seed, chance)
    chaos = Chaos(
        backend, folder / "job", patience_seconds=3.0, rebalance=seed % 2 == 0, spared=SPARED, listen=seed % 2 == 1
    )
    strikes = [*schedule(seed, 6, STEPS, around=True), Strike(4, "resize", devices=chance.randint(6, 8))]
    if seed % 2 == 1:
        strikes.append(Strike(chance.randrange(STEPS // 2), "port", chance.randrange(8)))
    finished = chaos.run(
        sorted(strikes, key=lambda s: s.step),
        epochs=EPOCHS,
        faults=faults,
        save=str(folder / "c.pt"),
        loader_workers=seed % 2,
        daemons=seed % 3 == 0,
    )
    assert_undisturbed(finished, calm)
    hit = [faults[int(marker.name.split("-")[1])][1] for marker in (folder / "job" / "ids").glob("struck-*")]
    return Counter(hit) + chaos.done


def kill_coordinator(seed: int, folder: Path, calm: str) -> Counter[str]:
    """The coordinator dies, alone or with workers: every step is made once, to the same bits."""
    chance = random.Random(seed)
    where, epoch, dies = chance.choice(orphans.ALL)
    devices = chance.randint(1, 4) if not dies else 3
    orphans.assert_no_step_is_lost(orphans.run(folder, where, dies, devices=devices, epoch=epoch), calm)
    return Counter({f"coordinator, {where}": 1, "worker with its coordinator": len(dies)})


@contextmanager
def home_of(folder: Path) -> Iterator[None]:
    """What runs inside has its home in *folder*, by which its processes are known."""
    before = os.environ["VF_HOME"]
    os.environ["VF_HOME"] = str(folder)
    try:
        yield
    finally:
        os.environ["VF_HOME"] = before


def aimed(seed: int, chance: random.Random) -> list[tuple[str, str, int]]:
    """Four faults, each a device, a point and which time it is reached; all points have their turn in three seeds.

    Some points are reached rarely, and by some workers only: those who join, and the lead, who sends and saves.
    """
    joiners, others = chance.sample(("5", "6", "7"), 3), chance.sample(("2", "3", "4", "1"), 4)
    faults = []
    for number in range(4):
        point = POINTS[(4 * seed + number) % len(POINTS)]
        if point in ("joining", "receive state"):
            faults.append((joiners.pop(), point, 1))
        elif point in ("save", "send state"):  # one has its turn after the other: 1 leads when 0 has died
            faults.append(("1" if point == "save" else "0", point, 1))
        else:
            most = {"evaluate": 4, "form group": 2, "compare connections": 2}.get(point, 40)
            faults.append((others.pop(), point, chance.randint(1, most)))
    return faults
