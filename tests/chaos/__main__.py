"""``make chaos``: random schedules, so many or for so long. One that fails leaves evidence, and the others go on."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.chaos.flips import FlipAttack
from tests.chaos.job_attacks import FastAttack, JobAttack, ShardedAttack
from tests.chaos.manager import ManagerAttack
from tests.chaos.series import REPOSITORY, Series
from tests.fakecuda import build
from tests.stages.attack import StagesAttack

KINDS: dict[
    str, tuple[Callable[[Path, bool], Any], float]
] = {  # and for how long one schedule may take, if all is busy
    "job": (JobAttack, 240.0),
    "fast": (FastAttack, 240.0),
    "sharded": (ShardedAttack, 240.0),
    "flips": (FlipAttack, 600.0),
    "stages": (StagesAttack, 300.0),
    "manager": (ManagerAttack, 900.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--kind", choices=KINDS, default="job", help="what is struck")
    parser.add_argument("--minutes", type=float, default=10**6, help="begin no schedule after that")
    parser.add_argument("--schedules", type=int, default=10**9, help="how many at most")
    parser.add_argument("--seed", type=int, default=1, help="the first seed; one schedule each")
    parser.add_argument("--accelerator", action="store_true", help="on CUDA devices made for tests, and not on CPUs")
    parser.add_argument("--evidence", type=Path, default=REPOSITORY / "out" / "chaos", help="of schedules that fail")
    parser.add_argument("--json", type=Path, help="keep the outcomes in this file, after each schedule")
    given = parser.parse_args()
    if given.accelerator and (reason := build.why_not()):
        sys.exit(reason)
    deadline = time.monotonic() + 60 * given.minutes
    make, limit_seconds = KINDS[given.kind]
    series = Series(f"{given.kind}-on-cuda" if given.accelerator else given.kind, given.evidence, limit_seconds)
    with tempfile.TemporaryDirectory(prefix="vf-chaos-home-") as home:
        os.environ["VF_HOME"] = home
        attack = make(Path(home), given.accelerator)
        try:
            for seed in range(given.seed, given.seed + given.schedules):
                if seed > given.seed and time.monotonic() > deadline:
                    break
                series.run(seed, attack)
                if given.json:
                    series.outcome.write(given.json)
        finally:
            attack.close()
            print(series.report(), flush=True)
    sys.exit(bool(series.outcome.failed))


if __name__ == "__main__":
    main()
