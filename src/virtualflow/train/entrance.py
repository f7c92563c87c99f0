"""How this worker's script gets to where its job stands: it begins the job, resumes it, or joins it."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from virtualflow.train import allocator, committed
from virtualflow.train.boundary import Boundary
from virtualflow.train.committed import Live
from virtualflow.train.comparisons import Comparisons
from virtualflow.train.early_results import Recorded
from virtualflow.train.journal import Journal
from virtualflow.train.peers import Peers
from virtualflow.train.position import Loop
from virtualflow.train.resuming import Resuming
from virtualflow.train.saving import Checkpoints
from virtualflow.train.variables import MOST_NAMED


class Entrance:
    """The way of a Trainer into its loop, and out of it. *trainer* is its number in this process."""

    def __init__(
        self,
        trainer: int,
        live: Live,
        loop: Loop,
        peers: Peers,
        recorded: Recorded,
        checkpoints: Checkpoints,
        boundary: Boundary,
        comparisons: Comparisons,
        resuming: Resuming,
        journal: Journal,
    ) -> None:
        self._trainer = trainer
        self._live = live
        self._loop = loop
        self._peers = peers
        self._membership = peers.membership
        self._recorded = recorded
        self._checkpoints = checkpoints
        self._boundary = boundary
        self._comparisons = comparisons
        self._resuming = resuming
        self._journal = journal
        self._jobs_variables: dict[str, str] = {}  # of the script, when the job began the pass that it is in

    def enter_loop(self) -> bool:
        """Join the job, resume it, or begin it; return whether it has a past."""
        loop, job = self._loop, self._membership.job
        if loop.is_resumable is None:
            loop.is_resumable = self._membership.begin_training()
            if loop.is_resumable:
                self._peers.keep_at_the_end = self._checkpoints.write_end_of_pass
        self._live.variables.before_the_loop()
        if self._membership.joining:
            parameters = sum(parameter.nbytes for parameter in self._live.parts.parameters().values())
            allocator.have_ready(4 * parameters)  # the state that comes, with an optimizer's, and the sums
            self._peers.join(self._boundary.receive_state)
        elif job.resume_from is not None and loop.is_resumable and loop.position.global_step == 0:
            self._resuming.load(job.resume_from)
        self._peers.under_way.add(self._trainer)
        return loop.position.global_step > 0

    def enter_other_loop(self) -> bool:
        """The same for a loop that is not the Trainer's, and that knows by itself where the job is."""
        has_past = self.enter_loop()
        if self._loop.entering is not None:
            self._take_state()
            self._jobs_variables = self._loop.entering.get("variables", {})
            self._loop.enter_pass()
        self._loop.in_epochs = True
        self._recorded.enter_loop()
        return has_past

    def begin_epoch(self, epoch: int) -> None:
        """What the script does at the top of *epoch* starts from where it started when the job was there."""
        if (top := self._loop.begin_epoch(epoch)) is not None:
            self._live.settings.put(top, on_the_way=True)
        self._loop.top = self._live.settings.take_copy()
        self._recorded.new_section()

    def enter_pass(self, is_enumerated: Callable[[], bool]) -> None:
        """The script is where the job is: from here on this worker has the job's state.

        *is_enumerated* says whether the script counts the batches by itself.
        """
        loop, job = self._loop, self._membership.job
        self._live.variables.enter_pass()
        if loop.entering is not None:
            self._jobs_variables = loop.entering.get("variables", {})
        if loop.entering is not None and loop.position.in_pass:
            self._take_state()
            if not job.mixed:  # their kernels round differently
                than = "when the checkpoint was written" if loop.is_resumed else "on the other workers"
                where = f"on device {self._membership.device} than {than}"
                self._live.samples.check(loop.entering.get("samples", {}), where)
        self._warn_of_variables()
        if loop.entering is not None and loop.is_resumed and loop.position.step and is_enumerated():
            self._journal.warn_once(
                f"this job is resumed at step {loop.position.step} of an epoch, while enumerate(trainer.batches(...)) "
                "counts from 0. If anything but what is printed depends on that number (a schedule, a rate), use "
                "batch.step, which counts within the epoch, or trainer.global_step."
            )
        loop.enter_pass()
        self._recorded.in_pass = True

    def open_pass(self) -> None:
        """Somebody else's loop begins a pass; this worker has the job's state already."""
        self._live.variables.enter_pass()
        self._warn_of_variables()

    def leave_loop(self) -> None:
        """The loop has ended, or was left."""
        self._peers.under_way.discard(self._trainer)
        self._loop.leave_epochs()
        self._recorded.leave_epochs()

    def _take_state(self) -> None:
        """Put the job's state, which has been waiting, into this worker's objects."""
        assert self._loop.entering is not None
        committed.put(self._live, self._loop.entering)
        self._comparisons.note_equal()

    def _warn_of_variables(self) -> None:
        """Warn of those that the job had changed when it began this pass, and that the script here has not."""
        lost, resumed = self._live.variables.missing(self._jobs_variables), self._loop.is_resumed
        self._jobs_variables = {}
        if resumed and self._membership.job.resume_from is None:
            return  # by hand: such a script has its own ways
        how = "this job is resumed" if resumed else f"device {self._membership.device} has joined a running job"
        names = ", ".join(map(repr, lost[:MOST_NAMED])) + (" and others" if len(lost) > MOST_NAMED else "")
        if lost and (self._peers.is_lead or not resumed):
            warnings.warn(
                f"{how}, and runs the script from the top: {names} had changed by then, and here they have not. If "
                "what is trained, or printed, depends on them, keep them in the job: progress = vf.State(best=..., "
                "bad=0) and vf.Trainer(..., state=[progress]); modules, schedules, lists and dicts go into state=[...] "
                "as they are.",
                stacklevel=4,
            )
