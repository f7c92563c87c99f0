"""Traces that others have published, read as they are. A line that is wrong names itself and its file."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from virtualflow.cluster.job import Job
from virtualflow.errors import ConfigError, TraceError
from virtualflow.sim import pollux_applications
from virtualflow.sim import trace as own
from virtualflow.sim.generate import EXAMPLES
from virtualflow.sim.trace import Trace


def read(path: Path) -> Trace:
    """A trace in any known format, recognised by its contents."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise TraceError(f"cannot read the trace {path}: {reason}") from error
    if text.lstrip().startswith(("{", "[")):
        return _json(text, path)
    first = text.split("\n", 1)[0]
    if "\t" in first:
        return _lines(path, enumerate(text.splitlines(), 1), _gavel)
    columns = tuple(first.strip().split(","))
    if columns not in _CSV:
        known = "; ".join(",".join(columns) for columns in _CSV)
        raise TraceError(
            f"{path} is no trace that VirtualFlow knows. It reads its own JSON, the paper's JSON, Gavel's lines with "
            f"7 or 10 columns, and CSV files with one of these headers: {known}"
        )
    rows = csv.DictReader(text.splitlines())
    return _lines(path, ((rows.line_num, row) for row in rows), _CSV[columns])


def _json(text: str, path: Path) -> Trace:
    try:
        contents = json.loads(text)
    except ValueError as error:
        raise TraceError(f"{path} is damaged: {error}") from None
    if isinstance(contents, list):
        return _lines(path, enumerate(contents), _paper, "job")
    if contents.get("format") != own.FORMAT:
        raise TraceError(f"{path} is no trace: its format is {contents.get('format')!r}, not {own.FORMAT!r}")
    return own.from_json(contents, str(path))


def _lines(path: Path, rows: Iterable[tuple[int, Any]], to_job: Callable[[int, Any], Job], unit: str = "line") -> Trace:
    jobs: list[Job] = []
    for number, row in rows:
        try:
            jobs.append(to_job(len(jobs), row))
        except (ConfigError, KeyError, ValueError, TypeError, AttributeError) as error:
            reason = f"there is no {error}" if isinstance(error, KeyError) else str(error)
            raise TraceError(f"{path}, {unit} {number}: {reason}") from None
    return _from_zero(Trace(tuple(jobs), path.name))


def _from_zero(trace: Trace) -> Trace:
    """Dates become seconds since the first arrival; times that are small already stay as they are."""
    first = trace.jobs[0].arrival_seconds
    if first < 1e9:
        return trace
    from dataclasses import replace

    return Trace(tuple(replace(job, arrival_seconds=job.arrival_seconds - first) for job in trace.jobs), trace.source)


def _paper(number: int, row: Mapping[str, Any]) -> Job:
    data = row.get("glue_task") or row.get("dataset") or ""
    workload = {"bert": "bert-base", "transformer": "transformer"}.get(row["workload"])
    if row["workload"] == "resnet":
        workload = "resnet56" if data == "cifar10" else "resnet50"
    if workload is None:
        raise ValueError(f"unknown workload {row['workload']!r}")
    nodes = row["gpu_demand"] * row.get("num_virtual_nodes_per_device", 1)
    size, rest = divmod(row["batch_size"], nodes)
    if rest:
        raise ValueError(f"a batch of {row['batch_size']} cannot be divided into {nodes} virtual nodes")
    epochs, examples = row.get("num_epochs", 1), EXAMPLES.get(data, 0)
    steps = row["num_steps"] * epochs if "num_steps" in row else epochs * examples // row["batch_size"]
    return Job(
        id=str(number),
        arrival_seconds=float(row["arrival_time"]),
        demand=row["gpu_demand"],
        steps=steps,
        workload=workload,
        node_size=size,
        virtual_nodes=nodes,
        priority=float(row["priority"]),
    )


def _gavel(number: int, line: str) -> Job:
    columns = line.split("\t")
    if len(columns) == 10:
        name, steps, demand, priority, arrival = (columns[place] for place in (0, 5, 6, 7, 9))
    elif len(columns) == 7:
        name, steps, demand, priority, arrival = columns[0], columns[4], columns[6], "1", columns[5]
    else:
        raise ValueError(f"{len(columns)} columns with tabs between them; Gavel's traces have 7 or 10")
    batch = re.search(r"batch size ([0-9]+)", name)
    return Job(
        id=str(number),
        arrival_seconds=float(arrival),
        demand=int(demand),
        steps=int(steps),
        workload=name,
        node_size=int(batch[1]) if batch else 1,
        priority=float(priority),
    )


def _philly(number: int, row: Mapping[str, str]) -> Job:
    arrival = datetime.fromisoformat(row["timestamp"] + "+00:00").timestamp()
    return Job(str(number), arrival, int(row["num_gpus"]), float(row["duration"]))


def _pollux(number: int, row: Mapping[str, str]) -> Job:
    """As long as a training at its batch size takes: the traces themselves give no length."""
    workload, batch = pollux_applications.PREFIX + row["application"], int(row["batch_size"])
    if workload not in pollux_applications.applications():
        raise ValueError(f"unknown application {row['application']!r}")
    steps = pollux_applications.applications()[workload].steps_at(batch)
    return Job(row["name"], float(row["time"]), int(row["num_replicas"]), steps, workload, virtual_nodes=batch)


def _tiresias(number: int, row: Mapping[str, str]) -> Job:
    return Job(row["job_id"], float(row["submit_time"]), int(row["num_gpu"]), float(row["duration"]))


def _het(number: int, row: Mapping[str, str]) -> Job:
    """The paper's simulated heterogeneous scheduler: a job takes all devices of a type, the largest pool has 16."""
    sizes = {
        "bert-base": 32,
        "resnet50": 64,
        "transformer": 2048,
    }  # every type has memory for these
    size = sizes[row["workload"]]
    return Job(
        row["job"],
        float(row["arrival_s"]),
        16,
        int(row["total_steps"]),
        row["workload"],
        size,
        int(row["global_batch"]) // size,
        float(row["priority"]),
    )


_CSV: dict[Sequence[str], Callable[[int, Mapping[str, str]], Job]] = {
    ("timestamp", "duration", "num_gpus", "gpu_time", "cluster"): _philly,
    ("job", "arrival_s", "workload", "dataset", "global_batch", "total_steps", "priority"): _het,
    ("name", "time", "application", "num_replicas", "batch_size"): _pollux,
    ("job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration", "interval"): _tiresias,
}
