"""Every worker holds the same job: compared by digest, and if they differ, by name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor

from virtualflow.errors import ReplicaError
from virtualflow.train.committed import Live
from virtualflow.train.peers import Peers
from virtualflow.train.state import contents, described, digest, flattened
from virtualflow.train.undeclared_state import UndeclaredState

CAUSES = ("the optimizer", "loss_fn's", "state ", "requires_grad of", "the mode of")
NAMED = 3  # differences differences of one worker


class Replicas:
    """Compares what the workers of a job hold."""

    def __init__(self, live: Live, peers: Peers, undeclared: Sequence[UndeclaredState]) -> None:
        self._live = live
        self._peers = peers
        self._undeclared = undeclared
        self.equal_at = -1  # the last step after which they were compared

    def check(self, call: str, global_step: int, when: str) -> list[int]:
        """Raise ReplicaError if workers differ. On mixed device types they get the lead's model: returns which ones."""
        self._compare_blocks(call, global_step, when)
        stages = self._live.stages.compare(call, global_step, when) if self._live.stages is not None else []
        odd = self._odd(call, global_step)
        if odd and not self._peers.membership.job.mixed:
            raise self._refusal(call, global_step, when, odd)
        if odd:  # their kernels round differently
            values = (value for _, value in contents(self._live.parts, self._live.optimizers))
            self._peers.share(call, [value for value in values if isinstance(value, Tensor)])
        return sorted({*odd, *stages})

    def _compare_blocks(self, call: str, global_step: int, when: str) -> None:
        """Raise ReplicaError if two holders of a block hold different state."""
        shards = self._live.shards
        if shards is None:
            return
        mine = {
            f"{block.tensor}[{block.start}:{block.stop}]": _hash(
                (name, described(value)) for name, value in flattened(state, "")
            )
            for block, state in shards.held.items()
        }
        first: dict[str, tuple[str, str]] = {}
        everyone = self._peers.exchanged(call, global_step, mine)
        for device, theirs in zip(self._peers.membership.devices, everyone, strict=False):
            for block, value in theirs.items():
                other, known = first.setdefault(block, (device, value))
                if known != value:
                    raise ReplicaError(
                        f"workers hold different things {when}. The optimizer's state of {block} on device {device} is "
                        f"not that on {other}. An optimizer that reads anything but gradients, parameters and its own "
                        "state, or a setting of it that was changed on some workers only, does that."
                    )

    def _odd(self, call: str, global_step: int) -> list[int]:
        """The ranks of those workers that hold something else than the lead."""
        everyone = self._peers.gathered(call, global_step, int(self._digest()[:15], 16))
        odd = [rank for rank, theirs in enumerate(everyone) if theirs != everyone[0]]
        if not odd:
            self.equal_at = global_step
        return odd

    def _refusal(self, call: str, global_step: int, when: str, odd: list[int]) -> ReplicaError:
        """An error that says what differs, on whom, since when, and what usually causes that."""
        everyone = self._peers.exchanged(call, global_step, dict(self._described()))
        devices = self._peers.membership.devices
        differences = [
            _differences(devices[rank], everyone[rank], devices[0], everyone[0]) for rank in odd if rank < len(everyone)
        ]
        named = [name for rank in odd if rank < len(everyone) for name in _odd_names(everyone[rank], everyone[0])]
        since = f" They were equal at step {self.equal_at}." if self.equal_at >= 0 else ""
        return ReplicaError(
            f"workers hold different things {when}. {' '.join(differences)}{since} {_cause(named, self.equal_at)}"
        )

    def odd_number(self, call: str, global_step: int) -> str | None:
        """What to say of a number that ``loss_fn`` reads, if a worker has another one; None if none has.

        No error, since it may be one that each worker counts for itself.
        """
        membership = self._peers.membership
        mine = {name: value for undeclared in self._undeclared for name, value in undeclared.numbers().items()}
        everyone = self._peers.gathered(call, global_step, int(_hash(mine.items())[:15], 16))
        if min(everyone) == max(everyone):
            return None
        first, *others = self._peers.exchanged(call, global_step, mine)
        for device, theirs in zip(membership.devices[1:], others, strict=False):
            if names := _odd_names(theirs, first):
                return (
                    f"loss_fn reads {names[0]!r}, which is {theirs.get(names[0])} on device {device} and "
                    f"{first.get(names[0])} on {membership.devices[0]}. A worker that joins, or a job that resumes, "
                    f"begins with the script's first value. If the loss depends on it, keep it in the job: progress = "
                    f"vf.State({names[0]}=...) and vf.Trainer(..., state=[progress])."
                )
        return None

    def _digest(self) -> str:
        sha = hashlib.sha256(digest(self._live.parts, self._live.optimizers).encode())
        sha.update(_hash((*self._live.settings.described(), *self._tensors())).encode())
        return sha.hexdigest()

    def _described(self) -> Iterator[tuple[str, str]]:
        for name, value in contents(self._live.parts, self._live.optimizers):
            yield name, described(value)
        yield from self._live.settings.described()
        yield from self._tensors()

    def _tensors(self) -> Iterator[tuple[str, str]]:
        for undeclared in self._undeclared:
            yield from undeclared.tensors()


def _hash(named: Iterable[tuple[str, str]]) -> str:
    return hashlib.sha256("".join(f"{name}\0{value}\0" for name, value in named).encode()).hexdigest()


def _odd_names(theirs: dict[str, str], leads: dict[str, str]) -> list[str]:
    """What differs; settings first, since tensors that differ are often what they have led to."""
    odd = [name for name in {**leads, **theirs} if theirs.get(name) != leads.get(name)]
    return sorted(odd, key=lambda name: not name.startswith(CAUSES))


def _differences(device: str, theirs: dict[str, str], lead: str, leads: dict[str, str]) -> str:
    names = _odd_names(theirs, leads)
    differences = [
        f"{name} is {theirs.get(name, 'not there')[:60]}, and {leads.get(name, 'not there')[:60]} on {lead}"
        for name in names[:NAMED]
    ]
    more = f", and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"On device {device}, {'; '.join(differences)}{more}."


def _cause(names: list[str], equal_at: int) -> str:
    first = names[0] if names else ""
    if first.startswith("the optimizer"):
        return (
            "A learning rate or another setting of the optimizer was changed on some workers only: by code behind `if "
            "trainer.is_lead`, by a schedule that is not in state=[...], by a variable of the script that is not in a "
            "vf.State(), or by a count of batches (enumerate) that begins anew on a worker that joins: use batch.step."
        )
    if first.startswith("loss_fn's"):
        return (
            "A worker that joins, or a job that resumes, begins with the script's first value of it. Keep it in the "
            "job: in a vf.State() in state=[...], or as a buffer of a module there."
        )
    if first.startswith("state "):
        return (
            "What state=[...] holds must be the same on all: is it changed behind `if trainer.is_lead`, or by a clock?"
        )
    if first.startswith(("requires_grad of", "the mode of")):
        return "A layer was frozen, or a mode set, on some workers only. Do it on all of them, at the top of an epoch."
    if equal_at < 0:
        return (
            "Each worker builds the model itself, after vf.seed: something in it comes from elsewhere than the "
            "seeded generators: "
            "an order of files, a clock, another generator. Or the script draws other numbers on some workers "
            "before it."
        )
    return (
        "Something changes the model on some workers only: code behind `if trainer.is_lead`, an update made outside of "
        "trainer.step with numbers that differ by worker, or an optimizer with state of its own."
    )
