"""How long a job's steps took, by how its virtual nodes lay on devices: what its speed elsewhere is learnt from."""

from __future__ import annotations

import statistics
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from virtualflow.core.devices import type_of

UNSETTLED = 2  # steps after a change of the mapping that do not count: caches are cold, and workers wait for each other
RECENT = 64  # steps that a median is taken of
MAX_LAYOUTS = 64  # that are remembered of a job


@dataclass(frozen=True, slots=True, order=True)
class TypeShare:
    """The devices of one type that a job is on, and the most virtual nodes that one of them runs."""

    device_type: str
    devices: int
    waves: int


TypeShares = tuple[TypeShare, ...]  # by type


@dataclass(frozen=True, slots=True)
class TimedSteps:
    """What steps took on one layout: *seconds* is the median, *error* its standard error."""

    layout: TypeShares
    steps: int
    seconds: float
    error: float

    @property
    def devices(self) -> int:
        return sum(share.devices for share in self.layout)


def layout_of(mapping: Sequence[str]) -> TypeShares:
    """Of the device of each virtual node."""
    waves: dict[str, list[int]] = {}
    for device, nodes in Counter(mapping).items():
        waves.setdefault(type_of(device), []).append(nodes)
    return tuple(sorted(TypeShare(name, len(nodes), max(nodes)) for name, nodes in waves.items()))


@dataclass(slots=True)
class StepTimes:
    """Collects the step times of one job."""

    steps: int = 0  # that counted
    _layout: TypeShares = ()
    _unsettled: int = UNSETTLED
    _counts: Counter[TypeShares] = field(default_factory=Counter)
    _recent: dict[TypeShares, deque[float]] = field(default_factory=dict)

    def change(self, mapping: Sequence[str]) -> None:
        """From the next step on, virtual nodes are on these devices."""
        self._layout, self._unsettled = layout_of(mapping), UNSETTLED

    def note(self, seconds: float) -> None:
        """A step has ended."""
        if self._unsettled or not self._layout or not seconds > 0:
            self._unsettled = max(0, self._unsettled - 1)
            return
        self.steps += 1
        self._counts[self._layout] += 1
        if self._layout not in self._recent and len(self._recent) == MAX_LAYOUTS:
            del self._recent[next(iter(self._recent))]
        self._recent.setdefault(self._layout, deque(maxlen=RECENT)).append(seconds)

    def measured(self) -> tuple[TimedSteps, ...]:
        """In the order in which the job came to its layouts."""
        return tuple(
            TimedSteps(layout, self._counts[layout], *_median(recent)) for layout, recent in self._recent.items()
        )


def _median(seconds: Sequence[float]) -> tuple[float, float]:
    """The median and its standard error: one slow step among many says nothing of the others."""
    middle = statistics.median(seconds)
    if len(seconds) == 1:
        return middle, middle / 2
    spread = 1.4826 * statistics.median(abs(each - middle) for each in seconds)  # as for normal errors
    return middle, 1.2533 * spread / len(seconds) ** 0.5
