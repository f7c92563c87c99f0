"""The boundary between two steps: the one place where a job changes its workers by plan, stops, and is kept."""

from __future__ import annotations

import warnings

from virtualflow.core.mapping import DeviceId
from virtualflow.core.membership import Group
from virtualflow.core.sharding import EpochPlan
from virtualflow.core.verdicts import SentinelVerdict
from virtualflow.errors import CheckpointError
from virtualflow.train import committed
from virtualflow.train.audit import AuditExchange
from virtualflow.train.committed import Live
from virtualflow.train.early_results import Recorded
from virtualflow.train.journal import Journal
from virtualflow.train.peers import Peers
from virtualflow.train.position import Loop
from virtualflow.train.saving import Checkpoints


class Boundary:
    """Crossed by every worker before each step, in the same state."""

    def __init__(
        self, live: Live, loop: Loop, peers: Peers, recorded: Recorded, checkpoints: Checkpoints, journal: Journal
    ) -> None:
        self._live = live
        self._loop = loop
        self._peers = peers
        self._membership = peers.membership
        self._recorded = recorded
        self._checkpoints = checkpoints
        self._journal = journal
        self._looked_at: int | None = None  # the step at the last boundary: a batch may take several
        self._exchange = AuditExchange(self._membership) if self._membership.job.description.audit else None

    def cross(self, epoch: EpochPlan, step: int) -> None:
        """Do what is due before *step* of *epoch*."""
        self.settle()
        if self._exchange is not None:
            self._exchange.cross_boundary(epoch, step, self._loop.epochs)

    def settle(self) -> None:
        """Stop, write an automatic checkpoint, or change to a new generation, if that is due."""
        self.stop_if_due()
        step, every = self._loop.position.global_step, self._membership.job.description.checkpoint_every
        before = self._looked_at if self._looked_at is not None else step - 1
        self._looked_at = step
        if every and step and step // every > before // every and self._writes:
            try:
                self._checkpoints.write_automatic()
            except CheckpointError as error:  # a full disk: the next one may go better, and until then the last counts
                warnings.warn(f"the job continues without a checkpoint of this step: {error}", stacklevel=2)
        if self._membership.change_is_due:
            # Now: a worker that has just become the lead has the last one's steps to record, and may not stay the lead.
            self._journal.regrouped(step)
            self._make_way()
            if self._membership.change_is_due:  # else somebody was lost meanwhile
                self._peers.change(self._send_state)
            self.stop_if_due()
        self._journal.regrouped(step)

    def stop_if_due(self) -> None:
        """End this worker if the job is to stop here, with a checkpoint to go on from."""
        if self._membership.must_stop:
            if self._writes or self._membership.orphaned:  # the lead may be gone, too
                self._checkpoints.write_automatic()
            self._membership.stop()

    def stop_if_orphaned(self) -> None:
        """A loop has ended: if the coordinator is lost, this is the last boundary at which the job can stop."""
        if self._membership.orphaned:
            self.stop_if_due()

    @property
    def _writes(self) -> bool:
        """Whether this worker takes part in writing checkpoints: the lead does, or all if none has everything."""
        return self._peers.is_lead or self._live.shards is not None or self._live.stages is not None

    def _make_way(self) -> None:
        """Before workers leave, those who stay get what they are to hold then; if nobody stays, one gets everything."""
        shards, membership = self._live.shards, self._membership
        if self._live.stages is not None:
            self._live.stages.make_room(membership.coming)
        if shards is not None and self._staying() != membership.devices:
            shards.settle(lambda: self._staying() or membership.devices[:1])
            self.stop_if_due()

    def _staying(self) -> tuple[DeviceId, ...]:
        return tuple(device for device in self._membership.devices if device in self._membership.coming)

    def _send_state(self, group: Group) -> None:
        contents = committed.take(self._live, self._loop.position) | {"top": self._loop.top}
        contents |= {"agreements": self._peers.agreements, "agreed": self._peers.last}
        contents |= {"between": self._recorded.between, "results": self._recorded.section}
        if self._live.shards is not None:  # those who stay send each block to whom it is for, as soon as all are there
            contents["blocks"] = [] if self._staying() else self._live.shards.hand_over()
        for _ in range(committed.send(contents, group)):
            verdict, step = SentinelVerdict("state transfer", "", "sent again"), self._loop.position.global_step
            self._membership.report_verdict(step, verdict)
            self._journal.verdict_reached(step, verdict)

    def receive_state(self, group: Group) -> None:
        """Take the job's state from its lead; it is put in where the loop is: until then the script runs as it did."""
        contents = committed.receive(group, self._live.parts.device)
        self._loop.go_to(contents, resumed=False)
        self._peers.agreements, self._peers.last = contents["agreements"], contents["agreed"]
        self._recorded.replay([*contents["between"], *contents["results"]])
