"""The cluster for Prometheus, in its text format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from virtualflow.job.folder import STATES
from virtualflow.manager.api.views import Source

PAUSE_MS = (10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 10000.0)

Line = tuple[Mapping[str, str], float]


def text(source: Source) -> str:
    """All metrics of *source*."""
    state = source.state()
    jobs, devices = state["jobs"], state["devices"]
    counts = Counter(job["state"] for job in jobs)
    running = [job for job in jobs if job["examples_per_second"] is not None]
    busy = Counter((device["type"], _use(device)) for device in devices)
    pauses = [pause for job in jobs if job["started"] is not None for pause in source.watch(job["id"]).pauses_ms]
    parts = [
        _metric("vf_jobs", "gauge", "Jobs by state.", (({"state": each}, counts[each]) for each in STATES)),
        _metric(
            "vf_devices",
            "gauge",
            "Devices by type and use.",
            (({"type": t, "use": use}, count) for (t, use), count in sorted(busy.items())),
        ),
        _metric(
            "vf_examples_per_second",
            "gauge",
            "Examples a second of a running job.",
            ((_labels(job), job["examples_per_second"]) for job in running),
        ),
        _metric(
            "vf_step_seconds",
            "gauge",
            "Seconds that a step takes, over the last ones.",
            ((_labels(job), source.watch(job["id"]).step_seconds or 0.0) for job in running),
        ),
        _metric("vf_step", "counter", "Steps that a running job has made.", ((_labels(j), j["step"]) for j in running)),
        _metric("vf_job_devices", "gauge", "Devices of a job.", ((_labels(j), len(j["devices"])) for j in running)),
        _histogram("vf_pause_seconds", "How long changes of membership made jobs stand still.", pauses),
    ]
    return "".join(parts)


def _use(device: Mapping[str, object]) -> str:
    return "lost" if device["lost"] else "busy" if device["job"] is not None else "idle"


def _labels(job: Mapping[str, str]) -> dict[str, str]:
    return {"job": job["id"], "name": job["name"]}


def _metric(name: str, kind: str, told: str, lines: Iterable[Line]) -> str:
    return f"# HELP {name} {told}\n# TYPE {name} {kind}\n" + "".join(_line(name, *line) for line in lines)


def _histogram(name: str, told: str, pauses_ms: list[float]) -> str:
    def lines() -> Iterator[str]:
        yield f"# HELP {name} {told}\n# TYPE {name} histogram\n"
        for limit in PAUSE_MS:
            yield _line(f"{name}_bucket", {"le": f"{limit / 1000:g}"}, sum(pause <= limit for pause in pauses_ms))
        yield _line(f"{name}_bucket", {"le": "+Inf"}, len(pauses_ms))
        yield _line(f"{name}_sum", {}, sum(pauses_ms) / 1000)
        yield _line(f"{name}_count", {}, len(pauses_ms))

    return "".join(lines())


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    told = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{name}{{{told}}} {value:g}\n" if told else f"{name} {value:g}\n"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
