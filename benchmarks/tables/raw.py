"""The raw results of a section, and how their figures read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.report import RESULTS

SETTINGS = {"resnet": "ResNet", "gpt": "GPT", "mlp": "MLP"}


def results(section: str) -> dict[str, Any]:
    """The raw results of one section, with the date and the machine."""
    found: dict[str, Any] = json.loads((RESULTS / f"{section}.json").read_text())
    return found


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def measured_on(section: str) -> str:
    """When and on what a section was measured."""
    found = results(section)
    machine = found["machine"]
    notes = [found["note"]] if "note" in found else []
    notes += ["transcribed from the report of that run"] if "transcribed" in found else []
    torch = machine["torch"].split("+")[0]
    return ", ".join(
        [found["date"], f"{machine['cores']} cores of an {machine['processor']}", f"torch {torch}", *notes]
    )


def ratio(found: dict[str, float]) -> str:
    """A median with the middle half."""
    return f"{found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def joined(words: Sequence[str]) -> str:
    """ "a, b and c"."""
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0]
