"""``python -m benchmarks``: all sections, or ``--only`` one; ``--quick`` for a look in a few minutes."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib import import_module

SECTIONS: dict[str, tuple[str, dict[str, int]]] = {
    "speed-1": ("benchmarks.speed", {"devices": 1}),
    "speed-2": ("benchmarks.speed", {"devices": 2}),
    "certificate": ("benchmarks.certificate", {}),
    "memory": ("benchmarks.memory", {}),
    "sharding": ("benchmarks.sharding", {}),
    "pipelines": ("benchmarks.pipelines", {}),
    "scaling": ("benchmarks.scaling", {}),
    "overhead": ("benchmarks.overhead", {}),
    "sentinel": ("benchmarks.sentinel", {}),
    "launches": ("benchmarks.launches", {}),
    "loading": ("benchmarks.loading", {}),
    "elastic": ("benchmarks.elastic", {}),
    "mixed": ("benchmarks.mixed", {}),
    "grids": ("benchmarks.grids", {}),
    "scheduling": ("benchmarks.scheduling", {}),
    "decisions": ("benchmarks.decisions", {}),
    "cluster": ("benchmarks.cluster", {}),
    "gavel": ("benchmarks.gavel", {}),
    "node-sizes": ("benchmarks.node_sizes", {}),
    "scale": ("benchmarks.scale", {}),
    "control-plane": ("benchmarks.control_plane", {}),
    "learning": ("benchmarks.learning", {}),
    "policies": ("benchmarks.policies", {}),
    "libraries": ("benchmarks.libraries", {}),
    "paper": ("benchmarks.paper", {}),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", choices=SECTIONS, action="append", help="a section; may be given several times")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller sweeps: a look, not a figure")
    options = parser.parse_args()
    for name in options.only or SECTIONS:
        module, arguments = SECTIONS[name]
        run: Callable[..., None] = import_module(module).run
        started = time.monotonic()
        print(f"== {name}", flush=True)
        run(quick=options.quick, **arguments)
        print(f"{name} took {time.monotonic() - started:.0f} s\n", flush=True)
    if not options.quick:
        print("results are in benchmarks/results; `python -m benchmarks.tables` puts them into the documents")


if __name__ == "__main__":
    main()
