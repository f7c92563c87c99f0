"""Jobs that state the memory they need, in a cluster that knows the memory of its devices: which devices hold them.

A model that is cut into stages runs on devices of one type, on enough of them that each has room for its part; one that
is not cut fits on a device or does not. From this follow a job's minimum of devices, its demand and its types, and
nothing else: policies respect those, and know nothing of memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from virtualflow.cluster.job import Job
from virtualflow.cluster.throughput.model import Speed, Throughput
from virtualflow.core.devices import Pool
from virtualflow.core.memory_needs import Fit, MemoryNeeds, fit, least_peak
from virtualflow.core.sizes import size_text


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """*sizes*: bytes of a device by type; a type that is not named has as much as is asked for."""

    sizes: Mapping[str, int]

    def held(self, job: Job, devices: Mapping[str, int], on: Collection[str] = ()) -> Job | None:
        """*job* with the minimum, the demand and the types that its memory needs; None if *devices*, by type, lack it.

        Devices that are lost for the moment count. A job that is *on* a type stays there if that holds it.
        """
        if job.memory is None or not self.sizes:
            return job
        if not job.memory.is_cut:
            whole = frozenset(name for name in devices if self._fit(job, name) is not None)
            return replace(job, types=whole) if whole else None
        fitting = {name: fits for name in devices if (fits := self._fit(job, name)) and fits.least <= devices[name]}
        if not fitting:
            return None
        # Of the types that hold it, the first of those that have the most of what it asks for.
        best = max(fitting, key=lambda name: (name in on, min(devices[name], fitting[name].most)))
        least, most = fitting[best].least, fitting[best].most
        return replace(job, min=least, demand=max(least, min(job.demand, most)), types=frozenset((best,)))

    def why_not(self, job: Job, devices: Mapping[str, int]) -> str:
        """Why *devices* do not hold *job*, in words."""
        assert job.memory is not None
        fitting = {name: fits for name in devices if (fits := self._fit(job, name)) is not None}
        if not fitting:
            return self._too_large(job, job.memory, devices)
        name = min(fitting, key=lambda name: fitting[name].least - devices[name])
        fit = fitting[name]
        return f"it needs {fit.least} devices of at least {size_text(fit.size)}; {devices[name]} are there"

    def _fit(self, job: Job, device_type: str) -> Fit | None:
        assert job.memory is not None
        if device_type not in self.sizes:
            return Fit(job.min, max(job.min, job.demand), 0)
        return fit(job.memory, self.sizes[device_type], job.virtual_nodes, job.min, max(job.min, job.demand))

    def _too_large(self, job: Job, needs: MemoryNeeds, devices: Mapping[str, int]) -> str:
        count = max(job.min, min(job.virtual_nodes, needs.useful_devices))
        size = size_text(least_peak(needs, job.virtual_nodes, count))
        largest = size_text(max((self.sizes[name] for name in devices), default=0))
        what = f"even spread over {count} devices it needs one" if needs.is_cut else "it needs devices"
        return f"{what} of at least {size}, and the largest here has {largest}"


class HeldThroughput:
    """*inner*, where types that do not hold a job are not usable for it."""

    def __init__(self, inner: Throughput) -> None:
        self._inner = inner

    def speed(self, job: Job, pools: tuple[Pool, ...]) -> Speed:
        return self._inner.speed(job, pools)

    def usable(self, job: Job, device_type: str) -> bool:
        return (job.types is None or device_type in job.types) and self._inner.usable(job, device_type)

    def slowdown(self, job: Job, beside: Sequence[Job], device_type: str) -> float:
        return self._inner.slowdown(job, beside, device_type)
