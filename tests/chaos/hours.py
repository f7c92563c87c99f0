"""``make chaos HOURS=2``: series of all kinds, several at a time, each for its part of the time; one report of all."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.series import REPOSITORY, Outcome, commit

PARTS = {  # of the time, for each kind: on CPUs, and on CUDA devices made for tests
    ("job", False): 8,
    ("job", True): 4,
    ("stages", False): 4,
    ("stages", True): 2,
    ("sharded", False): 2,
    ("sharded", True): 1,
    ("fast", False): 1,
    ("fast", True): 1,
    ("flips", False): 1,
    ("manager", False): 4,
}
GRACE_SECONDS = 1800.0  # for the last schedule of a series, which has a limit of its own


@dataclass(frozen=True)
class Part:
    """A series of one kind, which runs in a process of its own."""

    kind: str
    on_cuda: bool
    minutes: float
    seed: int

    @property
    def name(self) -> str:
        return f"{self.kind}-on-cuda" if self.on_cuda else self.kind

    def command(self, outcome: Path) -> list[str]:
        options = ["--kind", self.kind, "--minutes", f"{self.minutes:.1f}", "--seed", str(self.seed)]
        return [
            sys.executable,
            "-m",
            "tests.chaos",
            *options,
            "--json",
            str(outcome),
            *["--accelerator"] * self.on_cuda,
        ]


def parts(hours: float, lanes: int, seed: int) -> list[Part]:
    """All kinds, the longest first, so that *lanes* side by side take *hours*."""
    minutes = 60 * hours * lanes / sum(PARTS.values())
    made = [Part(kind, on_cuda, minutes * weight, seed) for (kind, on_cuda), weight in PARTS.items()]
    return sorted(made, key=lambda part: -part.minutes)


def outcome_of(command: Sequence[str], kept: Path, limit_seconds: float) -> Outcome:
    """Run a series to its end, which keeps its outcome in a file; what it prints goes to the terminal."""
    try:
        code = subprocess.run(command, cwd=REPOSITORY, timeout=limit_seconds, check=False).returncode
        why = f"the series itself ended with code {code}" if code else ""
    except subprocess.TimeoutExpired:
        why = f"the series itself hung: it was not through after {limit_seconds:.0f} s"
    outcome = Outcome.read(kept) if kept.exists() else Outcome()
    if why and not outcome.failed:
        outcome.failed["none"] = why
    return outcome


def report(outcomes: dict[str, Outcome], minutes: float) -> str:
    """Counts by kind, and in all."""
    held = sum(len(outcome.passed) for outcome in outcomes.values())
    failed = [(name, seed, why) for name, outcome in outcomes.items() for seed, why in outcome.failed.items()]
    strikes = sum((outcome.counts for outcome in outcomes.values()), Counter[str]())
    lines = [
        f"{held + len(failed)} schedules, commit {commit()}, {minutes:.0f} minutes: {held} held, {len(failed)} failed; "
        f"{strikes.total()} strikes that had an effect",
        *(f"{len(outcome.passed):6d}  {name}" for name, outcome in outcomes.items()),
        *(f"{count:6d}  {kind}" for kind, count in sorted(strikes.items())),
        *(f"FAILED {name}, seed {seed}: {why}" for name, seed, why in failed),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.hours", description=__doc__)
    parser.add_argument("--hours", type=float, required=True, help="in all")
    parser.add_argument("--lanes", type=int, default=3, help="series side by side (default: 3; schedules wait a lot)")
    parser.add_argument("--seed", type=int, default=1, help="the first seed of each series")
    given = parser.parse_args()
    began = time.monotonic()
    todo = parts(given.hours, given.lanes, given.seed)
    with tempfile.TemporaryDirectory(prefix="vf-chaos-hours-") as folder, ThreadPoolExecutor(given.lanes) as pool:

        def run(part: Part) -> Outcome:
            kept = Path(folder, f"{part.name}.json")
            return outcome_of(part.command(kept), kept, 60 * part.minutes + GRACE_SECONDS)

        running = {part.name: pool.submit(run, part) for part in todo}
        try:
            outcomes = {name: outcome.result() for name, outcome in running.items()}
        except KeyboardInterrupt:  # which the series that run have got, too
            pool.shutdown(cancel_futures=True)
            sys.exit(130)
    print(report(outcomes, (time.monotonic() - began) / 60), flush=True)
    sys.exit(any(outcome.failed for outcome in outcomes.values()))


if __name__ == "__main__":
    main()
