"""When the workers of a job compare what they hold: at the start, at intervals of steps, and at the ends of epochs."""

from __future__ import annotations

from collections.abc import Sequence

from virtualflow.train.committed import Live
from virtualflow.train.journal import Journal
from virtualflow.train.peers import Peers
from virtualflow.train.position import Loop
from virtualflow.train.replicas import Replicas
from virtualflow.train.undeclared_state import UndeclaredState

COMPARE_EVERY = 100  # steps, on mixed device types
COMPARE_STEPS = 1000  # elsewhere, where an epoch is long; they are compared at its end in any case


class Comparisons:
    """Compares replicas when it is time for it. The journal records which of them were aligned."""

    def __init__(
        self, live: Live, loop: Loop, peers: Peers, undeclared: Sequence[UndeclaredState], journal: Journal
    ) -> None:
        self._samples = live.samples
        self._loop = loop
        self._peers = peers
        self._membership = peers.membership
        self._undeclared = undeclared
        self._journal = journal
        self._replicas = Replicas(live, peers, undeclared)

    def compare(self, call: str, when: str) -> None:
        """Raise ReplicaError if workers differ; on mixed device types they are aligned instead."""
        if aligned := self._replicas.check(call, self._global_step, when):
            self._journal.replicas_aligned(self._global_step, aligned)

    def note_equal(self) -> None:
        """This worker has just taken the job's state."""
        self._replicas.equal_at = self._global_step

    def before_step(self, step: int) -> None:
        """*step* of the epoch comes next."""
        every = COMPARE_EVERY if self._membership.job.mixed else COMPARE_STEPS
        if step and self._global_step % every == 0:
            self.compare("step", f"at step {self._global_step}")

    def end_epoch(self, epoch: int) -> None:
        """The last step of *epoch* is made."""
        call = "the end of an epoch"
        for undeclared in self._undeclared:
            undeclared.check("it has changed since the first step")
        self.compare(call, f"at the end of epoch {epoch}")
        if self._peers.has_joiners(call, self._global_step):
            if difference := self._replicas.odd_number(call, self._global_step):
                self._journal.warn_once(difference)
            self._compare_samples(call)

    def _compare_samples(self, call: str) -> None:
        """A worker that came between two epochs has trained on the dataset that it made: is it that of the others?"""
        if not self._membership.job.mixed:
            mine = self._samples.take() if self._peers.is_lead else {}
            everyone = self._peers.exchanged(call, self._global_step, mine)
            where = f"on device {self._membership.device} than on device {self._membership.devices[0]}"
            self._samples.check(everyone[0], where)

    @property
    def _global_step(self) -> int:
        return self._loop.position.global_step
