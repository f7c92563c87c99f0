"""Where a job stands in its script's loops, and how far this worker's own script has come in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from virtualflow.errors import ConfigError
from virtualflow.events.certificate import EMPTY_CHAIN


@dataclass(slots=True)
class Position:
    """Where the job stands: *step* of *epoch* comes next, unless the epoch is finished."""

    epoch: int = 0
    step: int = 0
    finished: bool = False
    in_pass: bool = False  # inside the loop over the epoch's batches
    global_step: int = 0
    chain: str = EMPTY_CHAIN

    @property
    def next_epoch(self) -> int:
        return self.epoch + 1 if self.finished else self.epoch

    @property
    def is_inside(self) -> bool:
        """Whether it is in the middle of an epoch's batches."""
        return self.in_pass and not self.finished


class Loop:
    """The script's loop over epochs and batches.

    The position is the job's. A worker that joins, or resumes, runs the script from the top: until it has come to the
    batches of the job's epoch, the job's state waits in ``entering``.
    """

    def __init__(self) -> None:
        self.position = Position()
        self.epochs = 0  # in all, as the script has said
        self.in_epochs = False
        self.top: dict[str, Any] | None = None  # the settings as they were at the top of the epoch
        self.entering: dict[str, Any] | None = None
        self.is_resumed = False
        self.is_resumable: bool | None = None  # as soon as it trains: whether it is the script's first that does
        self._pass_begun = False

    def go_to(self, saved: dict[str, Any], *, resumed: bool) -> None:
        """The job stands where *saved* says; the script has yet to get there."""
        self.position = Position(**saved["position"])
        self.entering = saved
        self.is_resumed = self.is_resumed or resumed

    def begin_epoch(self, epoch: int) -> dict[str, Any] | None:
        """Enter *epoch*; return the settings with which the job began it, if the job is in the middle of it."""
        position = self.position
        self.in_epochs, self._pass_begun = True, False
        if epoch != position.epoch or position.finished:
            position.epoch, position.step, position.finished, position.in_pass = epoch, 0, False, False
            self.entering = None
        return self.entering["top"] if self.entering is not None else None

    def begin_pass(self) -> None:
        """The script asks for the epoch's batches. Raises ConfigError if it may not."""
        if not self.in_epochs or self._pass_begun:
            raise ConfigError(
                "trainer.batches(dataset) goes once into each round of `for epoch in trainer.epochs(n):`, because an "
                "epoch is one pass over one dataset. To train on several, concatenate them "
                "(torch.utils.data.ConcatDataset), or have examples of each in one step (vf.zipped); to test on "
                "another one meanwhile: trainer.evaluate(dataset, metric_fn)."
            )
        self._pass_begun = True

    def enter_pass(self) -> None:
        """The script is where the job is."""
        self.entering = None
        self.position.in_pass = True

    def open_pass(self, epoch: int, epochs: int) -> None:
        """Somebody else's loop begins with *epoch* of *epochs*. Raises ConfigError if it has not been entered."""
        if not self.in_epochs:
            raise ConfigError("trainer.open_pass needs trainer.enter() before it, which joins or resumes the job")
        position = self.position
        if position.epoch != epoch or position.finished:
            position.epoch, position.step, position.finished = epoch, 0, False
        position.in_pass = True
        self.epochs = epochs

    def complete_step(self, step: int, chain: str) -> None:
        """*step* of the epoch is committed, and the job's certificate goes on with *chain*."""
        self.position.chain = chain
        self.position.step = step + 1
        self.position.global_step += 1

    def finish_epoch(self) -> None:
        self.position.finished = True

    def leave_epochs(self) -> None:
        self.in_epochs = False
