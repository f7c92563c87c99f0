"""What may be put around a Trainer's engine: another device's pace, or a measurement instead of training.

A worker's launcher chooses; the Trainer asks for a pace and says when a pass begins, and knows nothing else of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from virtualflow.core.emulation import Emulated
from virtualflow.train.committed import Live
from virtualflow.train.data import Feed
from virtualflow.train.pace import EmulatedPace, Pace
from virtualflow.train.peers import Peers
from virtualflow.train.step import StepRunner


@dataclass(frozen=True, slots=True)
class Engine:
    """A Trainer's engine at the beginning of a pass over *examples*, ready to make steps."""

    peers: Peers
    runner: StepRunner
    pace: Pace
    feed: Feed
    examples: int
    virtual_nodes: int
    live: Live
    settle: Callable[[], None]  # between two steps


class Instruments:
    """None: a Trainer that trains, as fast as its device does."""

    def pace(self) -> Pace:
        return Pace()

    def begin_pass(self, engine: Engine) -> None:
        """The script asks for its first batch of a pass."""


class Emulation(Instruments):
    """Waves that take as long as another device's."""

    def __init__(self, emulated: Emulated) -> None:
        self._emulated = emulated

    def pace(self) -> Pace:
        return EmulatedPace(self._emulated)


class MeasurementDone(BaseException):
    """Ends a script that has been measured. Not an error: a script's own ``except Exception`` must not stop it."""


class Measurement(Instruments):
    """Measures at the pace of *around* what *wanted* names, leaves the result in the job's folder, ends the script."""

    def __init__(self, wanted: Mapping[str, Any], around: Instruments) -> None:
        self._wanted = wanted
        self._around = around

    def pace(self) -> Pace:
        return self._around.pace()

    def begin_pass(self, engine: Engine) -> None:
        from virtualflow.train import profiler

        profiler.measure(engine, self._wanted)
        raise MeasurementDone


def chosen(settings: Mapping[str, Any]) -> Instruments:
    """The instruments that a worker was started with: ``emulated``, ``measurement``, both or neither."""
    emulated, wanted = settings.get("emulated"), settings.get("measurement")
    around = Emulation(Emulated.from_json(emulated)) if emulated is not None else Instruments()
    return Measurement(wanted, around) if wanted is not None else around
