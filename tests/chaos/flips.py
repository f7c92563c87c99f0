"""Jobs in which bits flip on workers, many in each: how many a sentinel finds, and that none that matters is committed.

At full rate, the job ends with the digest of an undisturbed one. At lower ones, some flips of what virtual nodes
compute are committed: they are counted.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

from tests.chaos.attack import Attack
from tests.conftest import Finished, Printed
from virtualflow.backends.local import LocalBackend
from virtualflow.core.faults import FLIP_POINTS
from virtualflow.events import CorruptionFound
from virtualflow.job.coordinator import Coordinator
from virtualflow.job.folder import JobFolder, JobSpec

JOB = Path(__file__).with_name("flip_job.py")
FLIPS = 56  # in one job
STEPS_APART = 3
EPOCHS = 30  # of six steps
DEVICES = 5
RATES = ("1", "1", "1", "1/4", "1/16")  # one schedule after another
COMPUTED = ("activations", "gradients")  # what only a second device can find
SEEN_WITHIN = {"parameters": 1, "optimizer state": 2}  # steps, at full rate


class FlipAttack(Attack):
    """Bits flip; devices that are drained are replaced by new ones, which get the job's state."""

    def prepare(self, home: Path, accelerator: bool) -> None:
        self._calm = run(self.backend, home / "calm", [], "0", devices=1)

    def schedule(self, seed: int, folder: Path) -> Counter[str]:
        rate, chance = RATES[seed % len(RATES)], random.Random(seed)
        points = FLIP_POINTS if rate == "1" else COMPUTED
        flips = [
            [6 + STEPS_APART * number, points[number % len(points)], chance.randrange(60), chance.randrange(2**31)]
            for number in range(FLIPS)
        ]
        finished = run(self.backend, folder / "job", flips, rate)
        struck, counts = strikes(finished), Counter[str]()
        if finished.outcome.code and rate != "1":  # what nobody has watched may end the job, as any NaN does
            assert "NonFiniteError" in finished.failure, finished.failure
            counts[f"a job that ended, rate {rate}: not finite"] += 1
        else:
            assert finished.outcome.code == 0, finished.failure
        unseen = "without effect" if rate == "1" else "not found"  # the digest shows that, below
        events = [event for event in finished.events if isinstance(event, CorruptionFound)]
        for point, step, device in struck:
            counts[f"{point}, rate {rate}: {'found' if was_found(events, point, step, device) else unseen}"] += 1
        if rate == "1":
            assert last_line(finished) == last_line(self._calm), "something was committed that should not have been"
        return counts


def run(backend: LocalBackend, folder: Path, flips: list[Any], rate: str, devices: int = DEVICES) -> Finished:
    marks = folder / "flips"
    marks.mkdir(parents=True)
    options = {"folder": str(marks), "flips": flips, "rate": rate, "epochs": EPOCHS, "few": 4 if flips else 0}
    job = JobSpec.of("job", str(JOB), (json.dumps(options),), tuple(map(str, range(devices))), patience_seconds=10.0)
    place, printed, fresh = JobFolder(folder / "job"), Printed(), iter(range(1000, 9999))
    place.create(job)

    def replace_the_drained() -> None:
        roster = coordinator.roster
        if flips and roster.is_settled and len(roster.generation.devices) < DEVICES and not roster.closed:
            missing = DEVICES - len(roster.generation.devices)
            coordinator.move([*roster.generation.devices, *(str(next(fresh)) for _ in range(missing))])

    coordinator = Coordinator(job, place, backend, printed, replace_the_drained)
    return Finished(coordinator.run(), place.path, printed)


def strikes(finished: Finished) -> list[tuple[str, int, str]]:
    """Which flips there were: the point, the step and the device of each."""
    kept = [json.loads(path.read_text()) for path in (finished.folder.parent / "flips").glob("flip-*")]
    return [(flip["point"], flip["step"], flip["device"]) for flip in kept]


def was_found(events: list[CorruptionFound], point: str, step: int, device: str) -> bool:
    if point == "state transfers":
        return any(event.what == "state transfer" for event in events)
    return any(
        step <= event.step <= step + SEEN_WITHIN.get(point, 0) and event.device in (device, "") for event in events
    )


def last_line(finished: Finished) -> str:
    printed = (text for (_, stream), text in finished.printed.text.items() if stream == "stdout")
    (line,) = b"".join(printed).splitlines()
    return line.decode()
