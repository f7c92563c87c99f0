"""``python -m benchmarks.tables``: fill the marked places of all documents, or ``--check`` that they are current."""

from __future__ import annotations

import argparse
import sys

from benchmarks.tables import ROOT, documents, filled


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if a document is not current")
    options = parser.parse_args()
    stale = []
    for path in documents():
        text = path.read_text()
        current = filled(text, str(path))
        if current != text:
            stale.append(str(path.relative_to(ROOT)))
            if not options.check:
                path.write_text(current)
    if stale:
        print("not current: " if options.check else "changed: ", ", ".join(stale))
    sys.exit(bool(stale) and options.check)


if __name__ == "__main__":
    main()
