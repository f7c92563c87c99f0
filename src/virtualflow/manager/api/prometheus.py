"""The cluster for Prometheus: what is true now as gauges, what has happened since the server started as counters."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from virtualflow.core.job_state import JobState
from virtualflow.manager.api.views import Source, View

LABELS = ["job", "name"]
PAUSE_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class PrometheusMetrics:
    """All metrics of *source*."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._registry = CollectorRegistry()
        self._registry.register(_Present(source))
        self._pauses = Histogram(
            "vf_pause_seconds",
            "How long changes of membership made jobs stand still, since the server started.",
            buckets=PAUSE_SECONDS,
            registry=self._registry,
        )
        self._counted = 0
        self._lock = threading.Lock()

    def text(self) -> bytes:
        """In Prometheus' text format."""
        with self._lock:
            pauses = self._source.pauses_ms()[self._counted :]  # it only grows, even when jobs end or are removed
            self._counted += len(pauses)
        for pause in pauses:
            self._pauses.observe(pause / 1000)
        return generate_latest(self._registry)


class _Present(Collector):
    """Reads the state of *source* at every scrape."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def describe(self) -> Iterator[Metric]:
        return iter(())  # the names are known only with the values

    def collect(self) -> Iterator[Metric]:
        state = self._source.state()
        counts = Counter(job["state"] for job in state["jobs"])
        jobs = GaugeMetricFamily("vf_jobs", "Jobs by state.", labels=["state"])
        for name in JobState:
            jobs.add_metric([name], counts[name])
        yield jobs
        devices = GaugeMetricFamily("vf_devices", "Devices by type and use.", labels=["type", "use"])
        for labels, count in sorted(Counter((device["type"], _use(device)) for device in state["devices"]).items()):
            devices.add_metric(labels, count)
        yield devices
        corruption = GaugeMetricFamily(
            "vf_job_corruption", "Corrupted data that a job's sentinel has found.", labels=LABELS
        )
        for job in state["jobs"]:
            if job["corruption"]:
                corruption.add_metric([job["id"], job["name"]], len(job["corruption"]))
        yield corruption
        yield from self._running([job for job in state["jobs"] if job["examples_per_second"] is not None])

    def _running(self, jobs: list[View]) -> Iterator[Metric]:
        speed = GaugeMetricFamily("vf_examples_per_second", "Examples a second of a running job.", labels=LABELS)
        step_time = GaugeMetricFamily(
            "vf_step_seconds", "Seconds that a step takes, over the last ones.", labels=LABELS
        )
        step = GaugeMetricFamily("vf_step", "Committed steps of a running job.", labels=LABELS)
        devices = GaugeMetricFamily("vf_job_devices", "Devices of a running job.", labels=LABELS)
        for job in jobs:
            labels = [job["id"], job["name"]]
            speed.add_metric(labels, job["examples_per_second"])
            step_time.add_metric(labels, self._source.watch(job["id"]).step_seconds or 0.0)
            step.add_metric(labels, job["step"])
            devices.add_metric(labels, len(job["devices"]))
        yield from (speed, step_time, step, devices)


def _use(device: Mapping[str, object]) -> str:
    return "lost" if device["lost"] else "busy" if device["job"] is not None else "idle"
