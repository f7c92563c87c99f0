"""``make chaos``: every script of the corpus in every way. Says of each what it broke, and goes on."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from fnmatch import fnmatch
from pathlib import Path

from tests.equivalence.corpus import WAYS, BrokenPromiseError, Ran, Runner, Script, corpus
from virtualflow.backends.local import LocalBackend


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", help="scripts by name, * allowed; may be repeated")
    parser.add_argument("--way", choices=WAYS, action="append", help="the ways to run them; the first is `python`")
    parser.add_argument("--part", default="1/1", metavar="I/N", help="every N-th script, from the I-th on")
    given = parser.parse_args()
    part, parts = map(int, given.part.split("/"))
    chosen = [s for s in corpus().values() if not given.only or any(fnmatch(s.name, name) for name in given.only)]
    if not chosen:
        parser.error(f"no script is called {' or '.join(given.only)}: they are in tests/equivalence/scripts")
    chosen = chosen[part - 1 :: parts]
    started, broken = time.monotonic(), 0
    with LocalBackend() as backend, tempfile.TemporaryDirectory() as folder:
        for script in chosen:
            broken += bool(run(Runner(backend, Path(folder) / script.name), script, given.way or WAYS))
    print(f"{len(chosen)} scripts in {time.monotonic() - started:.0f} s: {len(chosen) - broken} keep their promise")
    sys.exit(bool(broken))


def run(runner: Runner, script: Script, ways: list[str]) -> list[str]:
    """Check *script* in all *ways*; return what was broken."""
    started, broken = time.monotonic(), []
    calm: Ran | None = None
    for way in dict.fromkeys(["python", *ways]):
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
