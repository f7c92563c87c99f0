"""``make chaos``: jobs in stages on random grids, struck, reshaped and resumed elsewhere: the bits of a calm run."""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests import fakecuda
from tests.chaos.harness import Chaos, Strike
from tests.chaos.series import REPOSITORY, Series, assert_no_orphans
from tests.conftest import Finished, Launcher
from tests.fakecuda import build
from tests.stages.test_same_bits_with_stages import JOB, MODELS, assert_same_bits, run
from virtualflow.backends.local import LocalBackend
from virtualflow.core.faults import STAGE_POINTS
from virtualflow.events.certificate import compare

EPOCHS, STEPS = 6, 18
STAGES, NODES = 4, 4
LIMIT_SECONDS = 300.0  # for one schedule, on a busy machine
POINTS = (
    *("forward", "backward", "bucket", "before the scalars", "after the scalars", "optimizer", "after the commit"),
    *STAGE_POINTS,
    *("evaluate", "send state", "receive state", "joining", "save"),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.stages", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10**6, help="begin no schedule after that")
    parser.add_argument("--schedules", type=int, default=10**9, help="how many at most")
    parser.add_argument("--seed", type=int, default=1, help="the first seed; one schedule each")
    parser.add_argument("--accelerator", action="store_true", help="on CUDA devices made for tests, and not on CPUs")
    parser.add_argument("--evidence", type=Path, default=REPOSITORY / "out" / "chaos", help="of schedules that fail")
    given = parser.parse_args()
    if given.accelerator and (reason := build.why_not()):
        sys.exit(reason)
    deadline = time.monotonic() + 60 * given.minutes
    series = Series("stages-on-cuda" if given.accelerator else "stages", given.evidence, LIMIT_SECONDS)
    with tempfile.TemporaryDirectory(prefix="vf-chaos-home-") as home:
        os.environ["VF_HOME"] = home
        attack = StagesAttack(Path(home), given.accelerator)
        try:
            for seed in range(given.seed, given.seed + given.schedules):
                if seed > given.seed and time.monotonic() > deadline:
                    break
                series.run(seed, attack)
        finally:
            attack.close()
            print(series.report(), flush=True)
    sys.exit(bool(series.failed))


class StagesAttack:
    """Schedules of strikes, faults and changes of shape at one job each. Calm runs are made on CPUs, on one device."""

    def __init__(self, home: Path, accelerator: bool) -> None:
        self._evaluate = not accelerator  # for which an accelerator may choose another kernel than for training
        with LocalBackend() as cpus:
            launch = Launcher(cpus, home)
            self._calm = {model: run(launch, model=model, epochs=EPOCHS, evaluate=self._evaluate) for model in MODELS}
        if accelerator:
            os.environ.update(fakecuda.environment(fakecuda.DEVICES))
        self._start_backend()

    def __call__(self, seed: int, folder: Path) -> Counter[str]:
        """One schedule; returns how often each kind has had an effect."""
        try:
            counts = self._schedule(seed, folder)
            assert_no_orphans(self._mark, self._spared)
        except BaseException:  # whatever is wrong with it, the next schedule has another one
            self.close()
            self._start_backend()
            raise
        return counts

    def _schedule(self, seed: int, folder: Path) -> Counter[str]:
        chance = random.Random(seed)
        model = MODELS[seed % len(MODELS)]
        case = {
            "model": model,
            "epochs": EPOCHS,
            "evaluate": self._evaluate,
            "copies": 2,
            "pipeline": chance.choice(["1f1b", "gpipe"]),
            "recompute": chance.random() < 0.5,
        }
        if seed % 3 == 0:
            return self._elsewhere(chance, folder, case, self._calm[model])
        return self._struck(chance, folder, case, self._calm[model])

    def _struck(self, chance: random.Random, folder: Path, case: dict[str, object], calm: Finished) -> Counter[str]:
        """Changes of shape, and one or two deaths, which may come at the same moment: with a copy more than that."""
        steps = sorted(chance.sample(range(2, STEPS - 1), 4))
        strikes = [Strike(step, "resize", devices=chance.randint(3, 4)) for step in steps]
        faults = [(str(chance.randrange(4)), chance.choice(POINTS), chance.randint(1, 20))]
        if chance.random() < 0.5:
            strikes[chance.randrange(4)] = Strike(chance.choice(steps), "kill", chance.randrange(4))
        case |= {"copies": 3}
        chaos = Chaos(self._backend, folder / "job", devices=chance.randint(3, 4), spared=2, script=JOB)
        finished = chaos.run_held(sorted(strikes, key=lambda strike: strike.step), faults=faults, **case)
        assert finished.outcome.code == 0, finished.failure
        assert_same_bits(calm, finished)
        hit = [faults[int(marker.name.split("-")[1])][1] for marker in (folder / "job" / "ids").glob("struck-*")]
        return Counter(hit) + chaos.done

    def _elsewhere(self, chance: random.Random, folder: Path, case: dict[str, object], calm: Finished) -> Counter[str]:
        """On a random grid up to a checkpoint, and from there on another one."""
        (folder / "jobs").mkdir(parents=True)
        launch, kept = Launcher(self._backend, folder / "jobs"), str(folder / "checkpoint.pt")
        for part in ({"stop_at": chance.randrange(2, STEPS - 1), "save": kept}, {"load": kept}):
            cells = random_cells(chance)
            (folder / f"{'-'.join(part)}.json").write_text(json.dumps(cells))
            last = run(launch, 1 + max(map(max, cells)), cells, **case, **part)
        verdict = compare(calm.certificate, last.certificate)
        assert verdict.equal, verdict
        assert last.out().splitlines()[-1] == calm.out().splitlines()[-1]
        return Counter({"resumed on another grid": 1})

    def _spared(self) -> set[int]:
        self._backend.exits()  # workers that have outlived their server, with what they left, are ended here
        return {self._backend.server_pid}

    def _start_backend(self) -> None:
        self._mark = f"of-{os.getpid()}-{time.monotonic_ns()}"  # by which all that its workers start is known
        self._backend = LocalBackend(environment={"VF_CHAOS": self._mark}).__enter__()

    def close(self) -> None:
        self._backend.__exit__(None, None, None)


def random_cells(chance: random.Random) -> list[list[int]]:
    """A row for each stage; any device may run any cell, and each runs one."""
    devices = chance.randint(2, 4)
    cells = [[chance.randrange(devices) for _ in range(NODES)] for _ in range(STAGES)]
    for device, place in enumerate(chance.sample(range(STAGES * NODES), devices)):
        cells[place // NODES][place % NODES] = device
    return cells


if __name__ == "__main__":
    main()
