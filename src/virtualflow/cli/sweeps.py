"""Sweeps: one script with many parameters, each combination a job; and what came of them."""

from __future__ import annotations

import csv
import itertools
import re
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from virtualflow.core.job_view import JobView
from virtualflow.core.wording import counted
from virtualflow.errors import ConfigError

MAX_JOBS = 1000  # of one sweep
LOSS = "loss"

Parameters = dict[str, str]


def combinations(given: Sequence[str]) -> list[Parameters]:
    """Every combination of what ``--sweep`` gives: ``NAME=VALUE,VALUE``, or a CSV file with one in each row."""
    choices = [_rows(Path(text)) if "=" not in text else _values(text) for text in given]
    _check_once([name for rows in choices for name in rows[0]], "--sweep")
    found = [{name: value for part in parts for name, value in part.items()} for parts in itertools.product(*choices)]
    if len(found) > MAX_JOBS:
        raise ConfigError(
            f"--sweep makes {len(found)} jobs of these values: at most {MAX_JOBS} are submitted at a time"
        )
    return found


def _values(text: str) -> list[Parameters]:
    name, _, values = text.partition("=")
    _check_names([name], f"--sweep {text}")
    row = next(csv.reader([values]), [])
    if not row or not all(row):
        raise ConfigError(f"--sweep {text}: expected NAME=VALUE,VALUE, such as lr=0.1,0.3")
    if len(set(row)) < len(row):
        raise ConfigError(f"--sweep {text} gives a value twice: the jobs would be the same, to the bit")
    return [{name: value} for value in row]


def _rows(file: Path) -> list[Parameters]:
    try:
        with file.open(newline="") as lines:
            rows = [row for row in csv.reader(lines) if row]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"--sweep {file}: expected NAME=VALUE,VALUE or a CSV file; {reason}") from None
    if len(rows) < 2:
        raise ConfigError(f"--sweep {file}: expected a line with names, and a line for each job")
    names = [name.strip() for name in rows[0]]
    _check_names(names, f"--sweep {file}")
    _check_once(names, f"--sweep {file}")
    found: list[Parameters] = []
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(names):
            raise ConfigError(
                f"--sweep {file}, line {number}: {counted(len(row), 'value')} for {counted(len(names), 'name')}"
            )
        found.append(dict(zip(names, (value.strip() for value in row), strict=True)))
        if found[-1] in found[:-1]:
            raise ConfigError(f"--sweep {file}, line {number}: the same values as before; the jobs would be the same")
    return found


def _check_once(names: Sequence[str], where: str) -> None:
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ConfigError(f"{where} gives {' and '.join(twice)} twice")


def _check_names(names: Sequence[str], where: str) -> None:
    for name in names:
        if not re.fullmatch(r"[A-Za-z_][\w.-]{0,63}", name):
            raise ConfigError(f"{where}: {name!r} can't be the name of a parameter")


def arguments_for(arguments: Sequence[str], parameters: Parameters) -> list[str]:
    """A job's arguments: values take the place of ``{lr}`` and the like; others follow, as ``--lr 0.1``."""
    places = re.compile("|".join(re.escape(f"{{{name}}}") for name in parameters) or "(?!)")
    placed = {place[1:-1] for argument in arguments for place in places.findall(argument)}
    # In one go: a value may look like another one's place.
    filled = [places.sub(lambda found: parameters[found[0][1:-1]], argument) for argument in arguments]
    return filled + [word for name, value in parameters.items() if name not in placed for word in (f"--{name}", value)]


def new_sweep(name: str) -> str:
    """A name of its own for the jobs that are submitted together."""
    return f"{name}-{secrets.token_hex(2)}"


def results(jobs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each job: its parameters, how it is, and its last values by metric."""
    return [
        {
            "id": job["id"],
            "parameters": job["parameters"],
            "state": job["state"],
            "step": job["step"],
            "results": {**({LOSS: job["loss"]} if job["loss"] is not None else {}), **job["metrics"]},
        }
        for job in jobs
    ]


def names_in(rows: Sequence[Mapping[str, Any]], key: str) -> list[str]:
    """Of parameters or results, in the order in which they appear."""
    return list(dict.fromkeys(name for row in rows for name in row[key]))


def result_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    parameters, metrics = names_in(rows, "parameters"), names_in(rows, "results")
    table = Table(
        *parameters, "STATE", "STEP", *metrics, "ID", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for row in sorted(rows, key=lambda row: [_order(row["parameters"].get(name, "")) for name in parameters]):
        values = [f"{row['results'][name]:.5g}" if name in row["results"] else "" for name in metrics]
        chosen = [row["parameters"].get(name, "") for name in parameters]
        table.add_row(*chosen, row["state"], f"{row['step']:.0f}", *values, row["id"])
    return table


def draw(axes: Any, rows: Sequence[Mapping[str, Any]], metric: str, along: str) -> None:
    """*metric* over the parameter *along*, with a line for each combination of the others."""
    shown = [row for row in rows if metric in row["results"] and along in row["parameters"]]
    splitting = _independent_of(along, [row["parameters"] for row in shown])
    lines: dict[str, list[tuple[str, float]]] = {}
    for row in shown:
        others = ", ".join(f"{name} {value}" for name, value in row["parameters"].items() if name in splitting)
        lines.setdefault(others, []).append((row["parameters"][along], row["results"][metric]))
    values = sorted({value for points in lines.values() for value, _ in points}, key=_order)
    places = [_number(value) for value in values]
    is_numeric = all(place is not None for place in places)
    at: dict[str, Any] = dict(zip(values, places if is_numeric else values, strict=True))
    for label, points in sorted(lines.items(), key=lambda line: _order(line[0])):
        points.sort(key=lambda point: _order(point[0]))
        axes.plot([at[value] for value, _ in points], [y for _, y in points], marker="o", label=label or None)
    numbers = [place for place in places if place is not None]
    if is_numeric and numbers and min(numbers) > 0 and max(numbers) >= 8 * min(numbers):
        axes.set_xscale("log")
        axes.set_xticks(numbers, values)
        axes.minorticks_off()
    axes.set(xlabel=along, ylabel=metric)
    axes.grid(alpha=0.3)
    if any(lines):
        axes.legend()


def _independent_of(along: str, parameters: Sequence[Mapping[str, str]]) -> set[str]:
    """The other parameters, but for those that follow from *along*: nodes, say, that grow with the batch."""
    values: dict[tuple[str, str], set[str]] = {}
    for given in parameters:
        for name, value in given.items():
            values.setdefault((name, given[along]), set()).add(value)
    return {name for (name, _), seen in values.items() if name != along and len(seen) > 1}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _order(text: str) -> tuple[float, str]:
    """Numbers by size, before words."""
    number = _number(text)
    return (number if number is not None else float("inf"), text)


def folded(jobs: Sequence[JobView]) -> list[JobView | list[JobView]]:
    """In the same order, with the jobs of a sweep together where its first one is."""
    rows: list[JobView | list[JobView]] = []
    sweeps: dict[str, list[JobView]] = {}
    for job in jobs:
        if not job.sweep:
            rows.append(job)
        elif job.sweep in sweeps:
            sweeps[job.sweep].append(job)
        else:
            rows.append(sweeps.setdefault(job.sweep, [job]))
    return rows
