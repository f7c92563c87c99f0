"""``make chaos``: random schedules, so many or for so long. One that fails leaves evidence, and the others go on."""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import fakecuda
from tests.chaos import test_orphans as orphans
from tests.chaos.harness import Chaos, Strike, assert_undisturbed, schedule
from tests.chaos.manager import ManagerChaos
from tests.chaos.series import REPOSITORY, Series, assert_no_orphans
from tests.conftest import Finished, Launcher
from tests.fakecuda import build
from tests.manager.managed import SCRIPT
from virtualflow.backends.local import LocalBackend
from virtualflow.core.faults import POINTS

EPOCHS = 12
STEPS = 6 * EPOCHS
SPARED = 3  # a strike and several faults may come at the same moment
LIMIT_SECONDS = {"job": 240.0, "manager": 900.0}  # for one schedule, on a busy machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10**6, help="begin no schedule after that")
    parser.add_argument("--schedules", type=int, default=10**9, help="how many at most")
    parser.add_argument("--seed", type=int, default=1, help="the first seed; one schedule each")
    parser.add_argument("--manager", action="store_true", help="a manager and its jobs, rather than one job")
    parser.add_argument("--accelerator", action="store_true", help="on CUDA devices made for tests, and not on CPUs")
    parser.add_argument("--evidence", type=Path, default=REPOSITORY / "out" / "chaos", help="of schedules that fail")
    given = parser.parse_args()
    if given.accelerator and (reason := build.why_not()):
        sys.exit(reason)
    deadline = time.monotonic() + 60 * given.minutes
    name = "manager" if given.manager else "job"
    series = Series(f"{name}-on-cuda" if given.accelerator else name, given.evidence, LIMIT_SECONDS[name])
    with tempfile.TemporaryDirectory(prefix="vf-chaos-home-") as home:
        os.environ["VF_HOME"] = home
        attack = (ManagerAttack if given.manager else JobAttack)(Path(home), given.accelerator)
        try:
            for seed in range(given.seed, given.seed + given.schedules):
                if seed > given.seed and time.monotonic() > deadline:
                    break
                series.run(seed, attack)
        finally:
            attack.close()
            print(series.report(), flush=True)
    sys.exit(bool(series.failed))


class JobAttack:
    """Schedules of strikes and faults at one job; each fourth one is of deaths of its coordinator.

    Calm runs are made on CPUs: those on an *accelerator* have the same bits.
    """

    def __init__(self, home: Path, accelerator: bool) -> None:
        self._start_backend()
        self._calm = Chaos(self._backend, home / "calm", devices=1).run(epochs=EPOCHS)
        assert self._calm.outcome.code == 0, self._calm.failure
        (home / "orphan").mkdir()
        self._calm_orphan = orphans.run(home / "orphan", "nowhere", devices=1).stdout.splitlines()[-1]
        if accelerator:
            self.close()
            os.environ.update(fakecuda.environment(fakecuda.DEVICES))  # of whatever is started from now on
            self._start_backend()
            assert len(self._backend.accelerators) == fakecuda.DEVICES

    def __call__(self, seed: int, folder: Path) -> Counter[str]:
        """One schedule; returns how often each kind has had an effect."""
        if seed % 4 == 0:
            with home_of(folder):
                counts = kill_coordinator(seed, folder, self._calm_orphan)
            assert_no_orphans(f"VF_HOME={folder}")
            return counts
        try:
            counts = strike(self._backend, seed, folder, self._calm)
            assert_no_orphans(self._mark, self._spared)
        except BaseException:  # whatever is wrong with it, the next schedule has another one
            self.close()
            self._start_backend()
            raise
        return counts

    def _spared(self) -> set[int]:
        self._backend.exits()  # workers that have outlived their server, with what they left, are ended here
        return {self._backend.server_pid}

    def close(self) -> None:
        self._backend.__exit__(None, None, None)

    def _start_backend(self) -> None:
        self._mark = f"of-{os.getpid()}-{time.monotonic_ns()}"  # by which all that its workers start is known
        self._backend = LocalBackend(environment={"VF_CHAOS": self._mark}).__enter__()


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
    """The coordinator dies, alone or with workers: the resumed job has made every step once, to the same bits."""
    chance = random.Random(seed)
    where, epoch, dies = chance.choice(orphans.ALL)
    devices = chance.randint(1, 4) if not dies else 3
    orphans.assert_no_step_is_lost(orphans.run(folder, where, dies, devices=devices, epoch=epoch), calm)
    return Counter({f"coordinator, {where}": 1, "worker with its coordinator": len(dies)})


class ManagerAttack:
    """Schedules of strokes, each at a manager of its own."""

    def __init__(self, home: Path, accelerator: bool) -> None:
        self._jobs = 0
        (home / "calm").mkdir()
        with LocalBackend() as backend:
            self._calm = Launcher(backend, home)(SCRIPT, 1, [str(home / "calm")]).digest
        if accelerator:
            os.environ.update(fakecuda.environment(fakecuda.DEVICES))

    def __call__(self, seed: int, folder: Path) -> Counter[str]:
        """One schedule; returns how often each kind has had an effect."""
        chaos = ManagerChaos(folder / "home", seed, rounds=1)
        chaos.run(self._calm)
        assert_no_orphans(f"VF_HOME={folder / 'home'}")
        self._jobs += len(chaos.jobs)
        return chaos.done

    def close(self) -> None:
        print(f"{self._jobs} jobs ended once, none was lost, all are equal to the undisturbed one")


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


if __name__ == "__main__":
    main()
