"""``make chaos``: every script of the corpus in every way. Says of each what it broke, and goes on."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from fnmatch import fnmatch
from pathlib import Path

from tests import fakecuda
from tests.equivalence.corpus import WAYS, BrokenPromiseError, Ran, Runner, Script, corpus
from tests.fakecuda import build
from virtualflow.backends.local import LocalBackend


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", help="scripts by name, * allowed; may be repeated")
    parser.add_argument("--way", choices=WAYS, action="append", help="the ways to run them; the first is `python`")
    parser.add_argument("--part", default="1/1", metavar="I/N", help="every N-th script, from the I-th on")
    parser.add_argument("--accelerator", action="store_true", help="on CUDA devices for tests; `python` on the CPU")
    given = parser.parse_args()
    if given.accelerator and (reason := build.why_not()):
        sys.exit(reason)
    part, parts = map(int, given.part.split("/"))
    chosen = [s for s in corpus().values() if not given.only or any(fnmatch(s.name, name) for name in given.only)]
    if not chosen:
        parser.error(f"no script is called {' or '.join(given.only)}: they are in tests/equivalence/scripts")
    chosen = [script for script in chosen if not (given.accelerator and script.on_cpus_only)][part - 1 :: parts]
    started, broken = time.monotonic(), 0
    variables = fakecuda.environment(fakecuda.DEVICES) if given.accelerator else {}
    with tempfile.TemporaryDirectory() as folder, LocalBackend(environment=variables | {"VF_HOME": folder}) as backend:
        assert len(backend.accelerators) == fakecuda.DEVICES or not given.accelerator
        for script in chosen:
            broken += bool(run(Runner(backend, Path(folder) / script.name), script, given.way or WAYS))
    print(f"{len(chosen)} scripts in {time.monotonic() - started:.0f} s: {len(chosen) - broken} keep their promise")
    sys.exit(bool(broken))


def run(runner: Runner, script: Script, ways: list[str]) -> list[str]:
    """Check *script* in all *ways*; return what was broken."""
    started, broken = time.monotonic(), []
    calm: Ran | None = None
    for way in dict.fromkeys(["python", *["1 device"][: runner.on_accelerators], *ways]):
        if way == "1 device" and runner.on_accelerators and script.other_bits:
            calm = None  # from here on it is compared with itself
        try:
            ran = runner.check(script, way, calm)
            calm = calm or ran
        except BrokenPromiseError as error:
            broken.append(str(error))
            if calm is None:
                break
    word = "broken" if broken else "refused" if script.refusals else "equal"
    print(f"{word:8} {script.name}  ({time.monotonic() - started:.1f} s)", *broken, sep="\n    ", flush=True)
    return broken


if __name__ == "__main__":
    root = Path(__file__).parent.parent.parent
    os.environ["PYTHONPATH"] = os.pathsep.join([str(root / "src"), str(root)])
    main()
