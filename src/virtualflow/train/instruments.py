"""What may be put around a Trainer's engine: another device's pace, a measurement instead of training, or
the replay of one step.

A worker's launcher chooses; the Trainer asks for a pace and says when a pass begins, and knows nothing else of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from virtualflow.core.emulation import Emulated
from virtualflow.core.sharding import GlobalBatch
from virtualflow.train.committed import Live
from virtualflow.train.data import Feed
from virtualflow.train.node_notes import NodeNotes
from virtualflow.train.pace import DevicePace, EmulatedPace, Pace
from virtualflow.train.peers import Peers
from virtualflow.train.step import StepResult
from virtualflow.train.undeclared_state import UndeclaredState

if TYPE_CHECKING:
    from virtualflow.train.inference import Inference
    from virtualflow.train.stages.staged_inference import StagedInference
    from virtualflow.train.stages.staging import Staging


class MakesSteps(Protocol):
    """What makes the steps of one phase."""

    def run(self, batch: GlobalBatch, global_step: int, feed: Feed, *, update: bool = True) -> StepResult: ...


@dataclass(frozen=True, slots=True)
class Engine:
    """A Trainer's engine, ready to make steps."""

    peers: Peers
    runners: Mapping[str, MakesSteps]  # by phase; a Trainer without phases has one, without a name
    pace: Pace
    virtual_nodes: int
    live: Live
    nodes: Callable[[], Sequence[int]]  # whose shards this worker loads
    inference: Inference | StagedInference
    undeclared: Sequence[UndeclaredState] = ()  # one for each phase
    staging: Staging | None = None  # of a model that is cut

    @property
    def first_runner(self) -> MakesSteps:
        """The one that is measured."""
        return next(iter(self.runners.values()))


class Instruments:
    """None: a Trainer that trains, as fast as its device does."""

    take_any_batch = False  # whether a plan's node sizes count whatever batch size the script has
    keep_files = True  # whether the script's checkpoints and exports are written, and its loggers run
    notes: NodeNotes | None = None  # who looks at what virtual nodes compute

    def pace(self, device: torch.device) -> Pace:
        return Pace() if device.type == "cpu" else DevicePace(device)

    def begin_pass(self, engine: Engine, settle: Callable[[], None], feed: Feed, examples: int) -> None:
        """The script asks for its first batch of a pass over *examples*, whose shards *feed* loads.

        *settle* does what is due between two steps.
        """

    def end_step(self, trainer: int, step: int) -> None:
        """The Trainer of that number has made *step* of the job."""


class Emulation(Instruments):
    """Waves that take as long as another device's."""

    def __init__(self, emulated: Emulated) -> None:
        self._emulated = emulated

    def pace(self, device: torch.device) -> Pace:
        return EmulatedPace(self._emulated)


class ScriptDone(BaseException):
    """Ends a script of which nothing more is wanted. No error: a script's own ``except Exception`` must not stop it."""


class Measurement(Instruments):
    """Measures at the pace of *around* what *wanted* names, leaves the result in the job's folder, ends the script."""

    take_any_batch = True

    def __init__(self, wanted: Mapping[str, Any], around: Instruments) -> None:
        self._wanted = wanted
        self._around = around

    def pace(self, device: torch.device) -> Pace:
        return self._around.pace(device)

    def begin_pass(self, engine: Engine, settle: Callable[[], None], feed: Feed, examples: int) -> None:
        if engine.staging is not None:
            from virtualflow.train.stages import stage_profiler

            stage_profiler.measure(engine, engine.staging, feed, examples, self._wanted)
        else:
            from virtualflow.train import profiler

            profiler.measure(engine, settle, feed, examples, self._wanted)
        raise ScriptDone


class StepReplay(Instruments):
    """Ends the script after a step of its first Trainer, and notes what its virtual nodes compute in it."""

    keep_files = False  # the script has written them when it was run

    def __init__(self, wanted: Mapping[str, Any], folder: Path) -> None:
        self._step: int = wanted["step"]
        if wanted["notes"]:
            self.notes = NodeNotes(self._step, folder, with_tensors=wanted["tensors"])

    def end_step(self, trainer: int, step: int) -> None:
        if trainer == 1 and step >= self._step:
            if self.notes is not None:
                self.notes.write()
            raise ScriptDone


def chosen(settings: Mapping[str, Any], folder: Path) -> Instruments:
    """The instruments that a worker of the job in *folder* was started with: see ``job.spec``."""
    emulated, wanted, replay = (settings.get(name) for name in ("emulated", "measurement", "replay"))
    if replay is not None:
        return StepReplay(replay, folder)
    around = Emulation(Emulated.from_json(emulated)) if emulated is not None else Instruments()
    return Measurement(wanted, around) if wanted is not None else around
