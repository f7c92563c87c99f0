"""What the libraries in place of own code cost and bring, each against the plainest code that does its work."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from benchmarks import report
from virtualflow.core.generation import Cause, Generation
from virtualflow.job.json_lines import decoded, encoded
from virtualflow.job.wire_messages import TO_WORKER, NewGeneration
from virtualflow.sim.metrics import interval

NODES = 64
REPEATS = 2000
TABLE = {4: 2.776, 9: 2.262, 19: 2.093, 29: 2.045}  # Student's t for 95%, by degrees of freedom, as in books
IMPORTS = ("msgspec", "prometheus_client", "scipy.special", "highspy")


def run(*, quick: bool) -> None:
    section = report.Section("libraries", quick=quick)
    repeats = REPEATS // 10 if quick else REPEATS
    content = {"wire": _wire(repeats), "t": _student(), "imports": _imports(2 if quick else 7)}
    section.show(
        f"A generation of {NODES} virtual nodes as a line, processor time",
        ["", "encode", "decode and check"],
        [[name, *(f"{seconds * 1e6:.1f} us" for seconds in times.values())] for name, times in content["wire"].items()],
    )
    section.show(
        "Student's t for 95%: SciPy against a table",
        ["seeds", "SciPy", "the table's nearest smaller entry"],
        [[row["seeds"], f"{row['scipy']:.4f}", f"{row['table']:.4f}"] for row in content["t"]],
    )
    section.show(
        "Imports, processor time",
        ["module", "median"],
        [[name, f"{seconds * 1e3:.0f} ms"] for name, seconds in content["imports"].items()],
    )
    section.save(content)


def _wire(repeats: int) -> dict[str, dict[str, float]]:
    """Typed messages against json with the fields put together and checked by hand."""
    devices = tuple(map(str, range(8)))
    generation = Generation(7, Cause.RESIZE, devices, tuple(devices[node % 8] for node in range(NODES)), devices[4:])
    message = NewGeneration(generation)

    def plainly() -> str:
        return json.dumps({"type": "NewGeneration", "generation": asdict(generation)})

    typed, plain = encoded(message), plainly()
    assert decoded(TO_WORKER, typed) == message
    assert _by_hand(plain) == generation

    return {
        "msgspec": {
            "encode": _seconds(lambda: encoded(message), repeats),
            "decode": _seconds(lambda: decoded(TO_WORKER, typed), repeats),
        },
        "json, by hand": {
            "encode": _seconds(
                lambda: json.dumps({"type": "NewGeneration", "generation": asdict(generation)}), repeats
            ),
            "decode": _seconds(lambda: _by_hand(plain), repeats),
        },
    }


def _by_hand(text: str) -> Generation:
    fields = json.loads(text)["generation"]
    number, cause, sender = fields["number"], Cause(fields["cause"]), fields["sender"]
    lists = [fields[name] for name in ("devices", "owners", "joining", "leaving")]
    if not isinstance(number, int) or not isinstance(sender, str | None):
        raise ValueError(fields)
    for names in lists:
        if names is not None and not all(isinstance(name, str) for name in names):
            raise ValueError(names)
    devices, owners, joining, leaving = (None if names is None else tuple(names) for names in lists)
    assert devices is not None
    assert joining is not None
    assert leaving is not None
    return Generation(number, cause, devices, owners, joining, leaving, sender)


def _seconds(call: Callable[[], object], repeats: int) -> float:
    """Of one call: the median over five series."""
    series = []
    for _ in range(5):
        began = time.process_time()
        for _ in range(repeats):
            call()
        series.append((time.process_time() - began) / repeats)
    return statistics.median(series)


def _student() -> list[dict[str, Any]]:
    """The quantile that an interval over *seeds* has, and what a table with a few rows would give."""
    rows = []
    for seeds in (5, 10, 15, 20, 25, 100):
        values = [float(number) for number in range(seeds)]
        half = interval(values).half_width
        assert half is not None
        quantile = half * seeds**0.5 / statistics.stdev(values)
        nearest = max(freedom for freedom in TABLE if freedom <= seeds - 1)
        rows.append({"seeds": seeds, "scipy": quantile, "table": TABLE[nearest]})
    return rows


def _imports(rounds: int) -> dict[str, float]:
    """Each in a new interpreter, after what Python itself loads."""
    program = "import time; began = time.process_time(); import {}; print(time.process_time() - began)"
    return {
        name: statistics.median(
            float(subprocess.run([sys.executable, "-c", program.format(name)], capture_output=True, check=True).stdout)
            for _ in range(rounds)
        )
        for name in IMPORTS
    }
