"""``make chaos``: random schedules for as long as told. Prints the seed of one that fails, to replay it."""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.chaos.harness import AROUND, SIGNALS, Chaos, Strike, assert_undisturbed, schedule
from tests.chaos.manager import ManagerChaos
from tests.cli.test_run import alive
from tests.conftest import Finished, Launcher
from tests.manager.managed import SCRIPT
from virtualflow.backends.local import LocalBackend
from virtualflow.core.faults import POINTS

EPOCHS = 40
STEPS = 6 * EPOCHS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="how long")
    parser.add_argument("--schedules", type=int, default=10**9, help="how many at most")
    parser.add_argument("--seed", type=int, default=1, help="the first seed; one schedule each")
    parser.add_argument("--manager", action="store_true", help="a manager and its jobs, rather than one job")
    given = parser.parse_args()
    if given.manager:
        attack_managers(given.seed, given.minutes, given.schedules)
        return
    counts: Counter[str] = Counter()
    with LocalBackend() as backend, tempfile.TemporaryDirectory() as folder:
        calm = Chaos(backend, Path(folder) / "calm", devices=1).run(epochs=EPOCHS)
        seed, deadline = given.seed, time.monotonic() + 60 * given.minutes
        while seed == given.seed or (time.monotonic() < deadline and seed < given.seed + given.schedules):
            counts += attack(backend, Path(folder) / f"seed-{seed}", seed, calm)
            seed += 1
            print(f"seed {seed - 1}: equal; so far {counts.total()} hits", flush=True)
    report(counts, seed - given.seed)


def attack(backend: LocalBackend, folder: Path, seed: int, calm: Finished) -> Counter[str]:
    """One schedule of strikes and faults; returns how often each has hit."""
    chance = random.Random(seed)
    faults = aimed(seed, chance)
    chaos = Chaos(backend, folder, patience_seconds=3.0, rebalance=seed % 2 == 0)
    strikes = [*schedule(seed, 6, STEPS, around=True), Strike(4, "resize", devices=chance.randint(6, 8))]
    try:
        finished = chaos.run(
            sorted(strikes, key=lambda s: s.step),
            epochs=EPOCHS,
            faults=faults,
            save=str(folder / "c.pt"),
            loader_workers=seed % 2,
            daemons=seed % 3 == 0,
        )
        assert_undisturbed(finished, calm)
        left = [marker.name for marker in (folder / "ids").glob("daemon-*") if alive(int(marker.name.split("-")[1]))]
        assert not left, f"left behind: {left}"
    except BaseException:
        print(f"seed {seed} FAILED: replay with make chaos SEED={seed} MINUTES=0.1", file=sys.stderr)
        raise
    hit = [faults[int(marker.name.split("-")[1])][1] for marker in (folder / "ids").glob("struck-*")]
    return Counter(hit) + chaos.done


def attack_managers(first: int, minutes: float, schedules: int) -> None:
    """One schedule after another, each with a manager of its own."""
    counts: Counter[str] = Counter()
    jobs, seed, deadline = 0, first, time.monotonic() + 60 * minutes
    with LocalBackend() as backend, tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "calm").mkdir()
        calm = Launcher(backend, Path(folder))(SCRIPT, 1, [str(Path(folder) / "calm")]).digest
        while seed == first or (time.monotonic() < deadline and seed < first + schedules):
            chaos = ManagerChaos(Path(folder) / f"seed-{seed}", seed, rounds=2)
            try:
                chaos.run(calm)
            except BaseException:
                print(f"seed {seed} FAILED: replay with make chaos SEED={seed} MINUTES=0.1", file=sys.stderr)
                raise
            counts += chaos.done
            jobs += len(chaos.jobs)
            print(f"manager, seed {seed}: {len(chaos.jobs)} jobs ended once, all equal", flush=True)
            seed += 1
    print(f"{seed - first} schedules, {jobs} jobs: none lost, none run twice, all equal to the undisturbed one")
    for kind, count in sorted(counts.items()):
        print(f"{count:6d}  {kind}")


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
            faults.append((others.pop(), point, chance.randint(1, 4 if point == "evaluate" else 40)))
    return faults


def report(counts: Counter[str], schedules: int) -> None:
    print(f"{schedules} schedules, all equal to the undisturbed run")
    for point in (*POINTS, *SIGNALS, "resize", *AROUND):
        print(f"{counts[point]:6d}  {point}")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parent.parent.parent))
    main()
