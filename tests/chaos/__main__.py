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

from tests.chaos.harness import Chaos, Strike, assert_undisturbed, schedule
from tests.conftest import Finished
from virtualflow.core.faults import POINTS
from virtualflow.runtime.local import LocalBackend

EPOCHS = 40
STEPS = 6 * EPOCHS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="how long")
    parser.add_argument("--seed", type=int, default=1, help="the first seed; one schedule each")
    given = parser.parse_args()
    deadline = time.monotonic() + 60 * given.minutes
    counts: Counter[str] = Counter()
    with LocalBackend() as backend, tempfile.TemporaryDirectory() as folder:
        calm = Chaos(backend, Path(folder) / "calm", devices=1).run(epochs=EPOCHS)
        seed = given.seed
        while time.monotonic() < deadline:
            counts += attack(backend, Path(folder) / f"seed-{seed}", seed, calm)
            seed += 1
            print(f"seed {seed - 1}: equal; so far {counts.total()} hits", flush=True)
    report(counts, seed - given.seed)


def attack(backend: LocalBackend, folder: Path, seed: int, calm: Finished) -> Counter[str]:
    """One schedule of strikes and faults; returns how often each has hit."""
    chance = random.Random(seed)
    faults = [(str(d), chance.choice(POINTS), chance.randint(1, 40)) for d in chance.sample(range(9), 4)]
    chaos = Chaos(backend, folder, patience_seconds=3.0)
    strikes = [*schedule(seed, 6, STEPS), Strike(4, "resize", devices=chance.randint(6, 8))]
    try:
        finished = chaos.run(
            sorted(strikes, key=lambda s: s.step), epochs=EPOCHS, faults=faults, save=str(folder / "c.pt")
        )
        assert_undisturbed(finished, calm)
    except BaseException:
        print(f"seed {seed} FAILED: replay with make chaos SEED={seed} MINUTES=0.1", file=sys.stderr)
        raise
    hit = [faults[int(marker.name.split("-")[1])][1] for marker in (folder / "ids").glob("struck-*")]
    return Counter(hit) + chaos.done


def report(counts: Counter[str], schedules: int) -> None:
    print(f"{schedules} schedules, all equal to the undisturbed run")
    for point in (*POINTS, "kill", "stop", "term", "resize"):
        print(f"{counts[point]:6d}  {point}")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parent.parent.parent))
    main()
