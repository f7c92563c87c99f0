"""A sentinel watches some virtual nodes of each step: another device runs them again. Which ones, and who is wrong.

Everything here is a pure function of what all workers know, so that all of them come to the same verdict.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from virtualflow.core.mapping import DeviceId
from virtualflow.core.seeds import derive
from virtualflow.errors import ConfigError

FINEST = 1_000_000  # the largest denominator of a rate
MOST_TRIALS = 3  # of one virtual node in one step

Answers = Mapping[DeviceId, int]  # what devices have computed for a virtual node, as digests


@dataclass(frozen=True, slots=True)
class SentinelVerdict:
    """Something was computed, sent or kept wrongly, and what was done about it, before the step was committed."""

    what: Literal["virtual node", "sums", "received sums", "state", "state transfer"]
    device: DeviceId  # empty if it is not known
    action: Literal["drained", "set right", "replayed", "sent again"]
    node: int = -1

    @property
    def text(self) -> str:
        """For people."""
        culprit = f"device {self.device}" if self.device else "a device or a connection that is not known"
        what = {
            "virtual node": f"computed virtual node {self.node} wrongly",
            "sums": "changed gradients after they were computed",
            "received sums": "holds other sums than were sent",
            "state transfer": "changed the state on its way to a worker that joins",
            "state": "held other parameters or optimizer state than most devices",
        }[self.what]
        return f"{culprit} {what}; {ACTIONS[self.action]}"


ACTIONS = {
    "drained": "it is drained, and the step was made again without it",
    "set right": "it got the state of the others, and the step was made again",
    "replayed": "the step was made again",
    "sent again": "it was sent again",
}


def rate_of(value: str | float | Fraction) -> Fraction:
    """The part of each batch that is watched, as somebody writes it: 1/16, 0.0625 or 1. Raises ConfigError."""
    try:
        rate = Fraction(value).limit_denominator(FINEST)
    except (ValueError, ZeroDivisionError, OverflowError, TypeError):
        rate = Fraction(-1)
    if not 0 <= rate <= 1:
        raise ConfigError(
            f"the sentinel's rate is {value!r}, expected a part of the batch from 0 (none) to 1 (all of it), such as "
            "1/16 or 0.0625"
        )
    return rate


def is_due(step: int, seed: int, rate: Fraction) -> bool:
    """Whether sums and replicas are compared in *step*: in every one at full rate, in one of 16 at 1/16."""
    return math.floor(rate + _drawn(step, seed)) > 0


def checkers(
    step: int, seed: int, nodes: Mapping[DeviceId, Sequence[int]], devices: Sequence[DeviceId], rate: Fraction
) -> dict[int, DeviceId]:
    """For each virtual node that is watched in *step* the device that runs it again, another one than its own.

    Of each device's own as many are watched as the rate says, on average over steps. As a step lasts as long as its
    slowest device, all devices check in the same steps.
    """
    if len(devices) < 2:
        return {}
    shift = 1 + derive(seed, "checker", step) % (len(devices) - 1)
    watched: dict[int, DeviceId] = {}
    for place, device in enumerate(devices):
        own = nodes.get(device, ())
        count = math.floor(rate * len(own) + _drawn(step, seed))
        drawn = sorted(own, key=lambda node: derive(seed, "watched", step, node))[:count]
        watched |= dict.fromkeys(drawn, devices[(place + shift) % len(devices)])
    return watched


def _drawn(step: int, seed: int) -> Fraction:
    """From 0 to 1, without 1: a number smaller than that is rounded up as often as it is large."""
    return Fraction(derive(seed, "watched steps", step), 2**32)


def judge(step: int, seed: int, parties: Sequence[DeviceId], devices: Sequence[DeviceId]) -> DeviceId | None:
    """A third device, to decide between *parties*; None if there is none."""
    others = [device for device in devices if device not in parties]
    return others[derive(seed, "judge", step) % len(others)] if others else None


def liars(tries: Sequence[Answers]) -> tuple[DeviceId, ...]:
    """Who has computed a virtual node wrongly, given all *tries* at it; none if they do not show that yet.

    What two devices agree on is right. Where no two agree, only who says something else each time is known to be wrong.
    """
    said: dict[DeviceId, list[int]] = {}
    for answers in tries:
        for device, answer in answers.items():
            said.setdefault(device, []).append(answer)
    shared = [answer for answer, count in Counter(a for s in said.values() for a in set(s)).items() if count > 1]
    if len(shared) == 1:
        return tuple(device for device, answers in said.items() if set(answers) != {shared[0]})
    fickle = tuple(device for device, answers in said.items() if len(set(answers)) > 1)
    return fickle if not shared and 0 < len(fickle) < len(said) else ()


def odd_ones(digests: Answers) -> tuple[DeviceId, ...] | None:
    """Whose digest is not that of more than half of them; None if no digest is."""
    ((common, count),) = Counter(digests.values()).most_common(1)
    if 2 * count <= len(digests):
        return None
    return tuple(device for device, digest in digests.items() if digest != common)
