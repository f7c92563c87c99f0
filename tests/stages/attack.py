"""Schedules at jobs in stages on random grids, struck, reshaped and resumed elsewhere: the bits of a calm run."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

from tests.chaos.attack import Attack
from tests.chaos.harness import Chaos, Strike
from tests.conftest import Finished, Launcher
from tests.stages.test_same_bits_with_stages import JOB, MODELS, assert_same_bits, run
from virtualflow.core.faults import STAGE_POINTS
from virtualflow.events.certificate import compare

EPOCHS, STEPS = 6, 18
STAGES, NODES = 4, 4
POINTS = (
    *("forward", "backward", "bucket", "before the scalars", "after the scalars", "optimizer", "after the commit"),
    *STAGE_POINTS,
    *("evaluate", "send state", "receive state", "joining", "save"),
)


class StagesAttack(Attack):
    """Strikes, faults and changes of shape at one job each; calm runs have one device."""

    def prepare(self, home: Path, accelerator: bool) -> None:
        self._evaluate = not accelerator  # for which an accelerator may choose another kernel than for training
        launch = Launcher(self.backend, home)
        self._calm = {model: run(launch, model=model, epochs=EPOCHS, evaluate=self._evaluate) for model in MODELS}

    def schedule(self, seed: int, folder: Path) -> Counter[str]:
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
        chaos = Chaos(self.backend, folder / "job", devices=chance.randint(3, 4), spared=2, script=JOB)
        finished = chaos.run_held(sorted(strikes, key=lambda strike: strike.step), faults=faults, **case)
        assert finished.outcome.code == 0, finished.failure
        assert_same_bits(calm, finished)
        hit = [faults[int(marker.name.split("-")[1])][1] for marker in (folder / "job" / "ids").glob("struck-*")]
        return Counter(hit) + chaos.done

    def _elsewhere(self, chance: random.Random, folder: Path, case: dict[str, object], calm: Finished) -> Counter[str]:
        """On a random grid up to a checkpoint, and from there on another one."""
        (folder / "jobs").mkdir(parents=True)
        launch, kept = Launcher(self.backend, folder / "jobs"), str(folder / "checkpoint.pt")
        for part in ({"stop_at": chance.randrange(2, STEPS - 1), "save": kept}, {"load": kept}):
            cells = random_cells(chance)
            (folder / f"{'-'.join(part)}.json").write_text(json.dumps(cells))
            last = run(launch, 1 + max(map(max, cells)), cells, **case, **part)
        verdict = compare(calm.certificate, last.certificate)
        assert verdict.equal, verdict
        assert last.out().splitlines()[-1] == calm.out().splitlines()[-1]
        return Counter({"resumed on another grid": 1})


def random_cells(chance: random.Random) -> list[list[int]]:
    """A row for each stage; any device may run any cell, and each runs one."""
    devices = chance.randint(2, 4)
    cells = [[chance.randrange(devices) for _ in range(NODES)] for _ in range(STAGES)]
    for device, place in enumerate(chance.sample(range(STAGES * NODES), devices)):
        cells[place // NODES][place % NODES] = device
    return cells
