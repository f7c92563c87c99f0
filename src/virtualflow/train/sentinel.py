"""Watches for devices that compute, send or keep something wrongly; what they say travels with a step's scalars.

So everything is known before a step is committed, by all workers at once, and each of them does the same about it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from torch import Tensor

from virtualflow.core import verdicts
from virtualflow.core.mapping import DeviceId
from virtualflow.core.seeds import derive
from virtualflow.core.verdicts import Answers, SentinelVerdict
from virtualflow.errors import SentinelError
from virtualflow.train import checksums
from virtualflow.train.attempt import Attempt
from virtualflow.train.checksums import MASK, Number
from virtualflow.train.committed import Live
from virtualflow.train.exact_reduction import ExactReduction
from virtualflow.train.peers import Peers
from virtualflow.train.reduction import Reduction
from virtualflow.train.scalars import ABSENT, NodeScalars, encoded
from virtualflow.train.state import contents

ROLES = 3  # a virtual node's own device, the one that runs it again, and the one that decides
ALONE = (
    "the sentinel watches nothing while the job has one device: it compares what two devices compute. Give the job "
    "more, three if it is to tell which one is wrong: vf run --devices 3."
)
UNEXPLAINED = 3  # times in one step that something may be wrong and nobody be found


@dataclass(frozen=True, slots=True)
class Duties:
    """Who runs which virtual node in one attempt: for each its own device, and those that run it besides."""

    devices: tuple[DeviceId, ...] = ()
    roles: Mapping[int, tuple[DeviceId, ...]] = field(default_factory=dict)

    def checked_by(self, device: DeviceId) -> list[int]:
        return [node for node, roles in self.roles.items() if device in roles[1:]]

    def is_watched(self, node: int) -> bool:
        return len(self.roles[node]) > 1


@dataclass(slots=True)
class Dispute:
    """A virtual node of which two devices have computed different things."""

    node: int
    tries: list[Answers]


class Sentinel:
    """Watches the part *rate* of each batch, and what replicas hold in as many steps."""

    def __init__(
        self, rate: Fraction, seed: int, virtual_nodes: int, live: Live, reduction: ExactReduction, peers: Peers
    ) -> None:
        self._rate = rate
        self._seed = seed
        self._virtual_nodes = virtual_nodes
        self._live = live
        self._peers = peers
        self._sums = reduction.watch_sums()
        self._duties = Duties()
        self._dispute: Dispute | None = None
        self._unexplained = 0
        self._has_warned = False
        self._step, self._is_due = -1, False
        self._seen: dict[int, dict[str, Number]] = {}  # of watched virtual nodes the gradients, by name
        self._said: dict[int, int] = {}  # what virtual nodes gave that this worker has run again
        self.verdicts: list[SentinelVerdict] = []  # in this step

    def begin_step(self, step: int) -> None:
        """*step* of the job comes next."""
        self._step, self._dispute, self._unexplained, self.verdicts = step, None, 0, []
        self._is_due = verdicts.is_due(step, self._seed, self._rate)

    def begin(self, attempt: Attempt) -> list[int]:
        """Another attempt begins, on the devices that there are now; which virtual nodes are to be run again here."""
        membership, batch = self._peers.membership, attempt.batch
        if len(membership.devices) == 1 and not self._has_warned:
            self._has_warned = True
            warnings.warn(ALONE, stacklevel=2)
        mapping = membership.mapping(self._virtual_nodes)
        busy = {
            device: [node for node in nodes if len(batch.shards[node])] for device, nodes in mapping.by_device().items()
        }
        checkers = verdicts.checkers(self._step, self._seed, busy, membership.devices, self._rate)
        roles = {
            node: (device, checkers[node]) if node in checkers else (device,)
            for device, nodes in busy.items()
            for node in nodes
        }
        dispute = self._dispute
        if dispute is not None and roles.get(dispute.node) != tuple(dispute.tries[0]):
            self._dispute = dispute = None  # one of the two is gone
        if dispute is not None:
            parties = roles[dispute.node]
            judge = verdicts.judge(self._step, self._seed, parties, membership.devices)
            roles[dispute.node] = parties if judge is None else (*parties, judge)
        self._duties = Duties(membership.devices, roles)
        self._sums.take(dispute is not None or self._is_due)
        self._said.clear()
        return self._duties.checked_by(membership.device)

    def begin_node(self, reduction: Reduction, node: int) -> None:
        """*node* runs next, as its own or again: see its gradients if it is watched."""
        reduction.witness = None
        if self._duties.is_watched(node):
            seen = self._seen[node] = {}

            def see(name: str, value: Tensor) -> None:
                seen[name] = checksums.of_memory(value)

            reduction.witness = see

    def note_again(self, reports: Mapping[int, NodeScalars]) -> None:
        """What came of the virtual nodes that were run again, in their order."""
        for (node, scalars), of_sums in zip(reports.items(), self._sums.of_nodes, strict=True):
            self._said[node] = self._answer(node, scalars, of_sums)

    @property
    def count(self) -> int:
        """How many numbers ``witnessed`` gives."""
        return (ROLES + 1) * self._virtual_nodes + 3 * len(self._duties.devices)

    def witnessed(self, mine: Mapping[int, NodeScalars] | None) -> list[int]:
        """What this worker says in this attempt, with the scalars of its own virtual nodes, in their order."""
        numbers = [ABSENT] * self.count
        device = self._peers.membership.device
        if mine is None or device not in self._duties.devices:
            return numbers
        for (node, scalars), of_sums in zip(mine.items(), self._sums.of_nodes, strict=True):
            numbers[(ROLES + 1) * node + ROLES] = of_sums
            if self._duties.is_watched(node):
                numbers[(ROLES + 1) * node] = self._answer(node, scalars, of_sums)
        for node, answer in self._said.items():
            numbers[(ROLES + 1) * node + self._duties.roles[node].index(device)] = answer
        start = (ROLES + 1) * self._virtual_nodes + 3 * self._duties.devices.index(device)
        numbers[start : start + 2] = checksums.total(self._sums.sent), checksums.total(self._sums.arrived)
        if self._sums.are_taken:
            self._live.buffers.restore()  # a virtual node may have left them in the middle of a step
            numbers[start + 2] = checksums.of_named(contents(self._live.parts, self._live.optimizers))
        return numbers

    def objects(self, numbers: Sequence[int]) -> bool:
        """Whether the attempt must not count, given what all have ``witnessed``.

        What is wrong has been set right when this returns, or who was wrong is gone.
        """
        if not self._duties.devices[1:]:
            return False
        by_node = {node: numbers[(ROLES + 1) * node : (ROLES + 1) * (node + 1)] for node in self._duties.roles}
        rest = numbers[(ROLES + 1) * self._virtual_nodes :]
        sent, arrived, state = (dict(zip(self._duties.devices, rest[kind::3], strict=True)) for kind in range(3))
        if max(state.values()) > ABSENT and len(set(state.values())) > 1:
            self._set_right(state)
        elif (verdict := self._wrong_sums({n: row[ROLES] for n, row in by_node.items()}, sent, arrived)) is not None:
            self._act_on([verdict])
        elif self._dispute is not None:
            self._decide(by_node[self._dispute.node])
        else:
            return self._differ(by_node)
        return True

    def _answer(self, node: int, scalars: NodeScalars, of_sums: int) -> int:
        """One number for all that *node* gave: gradients, sums, loss, weight, metrics, and the examples it loaded."""
        gradients = checksums.total((checksums.weight(name), seen) for name, seen in self._seen[node].items())
        metrics = [number.hex() for pair in scalars.metrics.values() for number in pair]
        total, weight, ids, integers, _, *flags = encoded(scalars)  # what is not finite shows in the gradients
        plain = derive(0, total, weight, ids, integers, *flags, *metrics)
        # Tries are compared with each other, and where sums are not due, only those after the first have checksums.
        return (gradients ^ (of_sums if self._is_due else 0) ^ (plain << 16)) & MASK

    def _differ(self, by_node: Mapping[int, Sequence[int]]) -> bool:
        """Whether two devices have computed different things for one virtual node: both will do so again."""
        for node, numbers in by_node.items():
            roles = self._duties.roles[node]
            if len(roles) > 1 and numbers[0] != numbers[1]:
                self._dispute = Dispute(node, [dict(zip(roles, numbers, strict=False))])
                return True
        return False

    def _decide(self, numbers: Sequence[int]) -> None:
        assert self._dispute is not None
        node, tries = self._dispute.node, self._dispute.tries
        tries.append(dict(zip(self._duties.roles[node], numbers, strict=False)))
        if liars := verdicts.liars(tries):
            self._dispute = None
            self._act_on([SentinelVerdict("virtual node", liar, "drained", node) for liar in liars])
        elif len(tries) > verdicts.MOST_TRIALS:
            raise SentinelError(self._undecided(node, list(tries[0])))

    def _undecided(self, node: int, parties: Sequence[DeviceId]) -> str:
        return (
            f"in step {self._step}, devices {' and '.join(parties)} compute different things for virtual node {node}, "
            f"{len(parties) + (len(self._duties.devices) > 2)} devices in {verdicts.MOST_TRIALS + 1} tries, and which "
            "of them is right can't be told. The step was not committed. Go on from the last checkpoint on three "
            "devices or more; if none agree there, either, the model does not compute the same twice: `vf run --audit`."
        )

    def _wrong_sums(self, of_nodes: Mapping[int, int], sent: Answers, arrived: Answers) -> SentinelVerdict | None:
        """What has happened to gradients between their rounding and the end of the all-reduce."""
        if not self._sums.are_taken:
            return None
        own = dict.fromkeys(self._duties.devices, 0)
        for node, roles in self._duties.roles.items():
            own[roles[0]] += of_nodes[node]
        for device, number in sent.items():
            if number != own[device] & MASK:
                return SentinelVerdict("sums", device, "drained")
        everything = sum(own.values()) & MASK
        odd = [device for device, number in arrived.items() if number != everything]
        if not odd:
            return None
        return (
            SentinelVerdict("received sums", odd[0], "drained")
            if len(odd) == 1
            else SentinelVerdict("received sums", "", "replayed")
        )

    def _act_on(self, reached: Sequence[SentinelVerdict]) -> None:
        """Report what was *reached*, and go on without the devices that are to be drained."""
        membership = self._peers.membership
        for verdict in reached:
            self._report(verdict)
        drained = {verdict.device for verdict in reached if verdict.action == "drained"}
        while not drained.isdisjoint(membership.devices):
            self._peers.catch_up()  # a worker that is drained does not return
        self._unexplained += not drained
        if self._unexplained > UNEXPLAINED:
            raise SentinelError(
                f"in step {self._step}, the sums of the gradients were changed on their way {self._unexplained} times, "
                "by a device or a connection that is not known. The step was not committed. Look at the network, or go "
                "on from the last checkpoint on other devices."
            )

    def _set_right(self, state: Answers) -> None:
        """Replicas hold different things: the odd ones get what most of them hold."""
        odd = verdicts.odd_ones(state)
        if odd is None:
            raise SentinelError(
                f"in step {self._step}, devices {' and '.join(state)} hold different parameters or optimizer state, "
                "and which of them are right can't be told. The step was not committed. Go on from the last "
                "checkpoint, on three devices or more."
            )
        for device in odd:
            self._report(SentinelVerdict("state", device, "set right"))
        self._dispute = None
        buffers = self._live.buffers
        buffers.reset()
        values = (value for _, value in contents(self._live.parts, self._live.optimizers))
        holders = [device for device in state if device not in odd]
        self._peers.share("step", [value for value in values if isinstance(value, Tensor)], holders)
        buffers.hold()

    def _report(self, verdict: SentinelVerdict) -> None:
        self.verdicts.append(verdict)
        self._peers.membership.report_verdict(self._step, verdict)
