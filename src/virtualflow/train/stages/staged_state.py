"""The state of a job whose model is cut into stages: this worker's part, and what all know of the whole."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from virtualflow.core.cells import Cells, given_cells, pipelines, with_copies
from virtualflow.core.mapping import DeviceId
from virtualflow.core.memory_needs import MemoryNeeds, grid_within, peak
from virtualflow.core.wording import listed
from virtualflow.errors import PeerLostError, ReplicaError, StateLostError
from virtualflow.train.packed_values import gather_packed, unpacked
from virtualflow.train.peers import Peers
from virtualflow.train.stages.held_stages import HeldStages
from virtualflow.train.stages.stage_cut import Cut
from virtualflow.train.stages.stage_moves import StageMoves
from virtualflow.train.stages.unit_sums import JobSums
from virtualflow.train.state import bytes_of

GridByProfile = Callable[[tuple[DeviceId, ...]], Cells]


@dataclass(frozen=True, slots=True)
class GridChoice:
    """How a job's cells are mapped onto whatever devices it has: a pure function, the same on every worker.

    *rows* are a grid given by hand, which counts whenever the job has as many devices as it names. Without one, that
    of *by_profile* counts, where *memory* keeps within *device_bytes* on each of its devices or is not known; else the
    usual one that does.
    """

    stages: int
    virtual_nodes: int
    copies: int
    rows: tuple[tuple[int, ...], ...] | None = None
    memory: MemoryNeeds | None = None
    device_bytes: int | None = None
    by_profile: GridByProfile | None = None

    def on(self, devices: Sequence[DeviceId]) -> Cells:
        by_hand = self.rows is not None and len(devices) == 1 + max(owner for row in self.rows for owner in row)
        if by_hand and self.rows is not None:
            cells = given_cells(self.rows, self.stages, self.virtual_nodes, devices)
        elif self.by_profile is not None and self._has_room(best := self.by_profile(tuple(devices))):
            return best
        elif self.memory is not None:
            return grid_within(self.memory, self.device_bytes, self.virtual_nodes, devices)
        else:
            cells = pipelines(self.stages, self.virtual_nodes, devices)
        return with_copies(cells, self.copies)

    def _has_room(self, cells: Cells) -> bool:
        return self.memory is None or self.device_bytes is None or peak(cells, self.memory) <= self.device_bytes


class Unheld(GridChoice):
    """No device holds anything: stages are measured, one at a time."""

    def on(self, devices: Sequence[DeviceId]) -> Cells:
        return Cells((("",) * self.stages,) * self.virtual_nodes)


class StagedState:
    """What this worker holds, and the grid that says so."""

    def __init__(
        self, cut: Cut, held: HeldStages, sums: JobSums, choice: GridChoice, peers: Peers, device: torch.device
    ) -> None:
        self.cut = cut
        self.held = held
        self.sums = sums
        self.device = device
        self._choice = choice
        self._peers = peers
        self._membership = peers.membership
        self._moves = StageMoves(cut, held, device)
        self._settled = -1  # the generation in whose grid this worker has taken its place
        if not self._membership.joining:
            self.cells = choice.on(self._membership.devices)
            held.begin(self.cells.stages_of(self._membership.device))
            self._settled = self._membership.generation
            sums.adopt(held)

    @property
    def copies(self) -> int:
        return self._choice.copies

    def cells_now(self) -> Cells:
        """The grid on the devices that the job has now."""
        return self.cells_on(self._membership.devices)

    def cells_on(self, devices: Sequence[DeviceId]) -> Cells:
        """The grid that the job has on *devices*."""
        return self._choice.on(devices)

    def warn_of_risk(self) -> None:
        """Say what the death of a device would cost, before anything is trained."""
        if len(self._membership.devices) > 1 and (risk := self.cells.at_risk()):
            warnings.warn(
                f"on one device only: {listed('stage', risk)}. If that device is lost, the job ends, and what was "
                "trained since its last checkpoint is lost. copies=2 keeps every stage on two devices.",
                stacklevel=4,
            )

    def rank_of(self, device: DeviceId) -> int:
        return self._membership.devices.index(device)

    def nodes(self) -> tuple[int, ...]:
        """The virtual nodes whose shards this worker loads."""
        loading = [stage for stage in range(self.cut.count) if self.cut.loads(stage)]
        return self.cells_now().nodes_of(self._membership.device, loading)

    def settle(self) -> None:
        """Take this worker's place among the devices that the job has now. All workers do, within a call of theirs."""
        if self._settled != self._membership.generation:
            self._change(self._choice.on(self._membership.devices))
            self._settled = self._membership.generation

    def make_room(self, coming: Sequence[DeviceId]) -> None:
        """Before devices leave: have those who stay in the generation of *coming* devices hold everything."""
        devices = self._membership.devices
        staying = [device for device in devices if device in coming]
        if len(staying) == len(devices):
            return
        if not staying:
            raise StateLostError(
                "all devices of this job are to be replaced at once, and with stages none of them holds the whole "
                "model. Add the new ones first and remove the old ones then, or stop the job and resume it there."
            )
        self._settled = -1  # whatever happens, all take their places anew in the next generation
        try:
            self._change(self._choice.on(staying))
        except PeerLostError:
            # As in a change that fails: nothing can have been missed, and nobody leaves before the next one.
            self._peers.catch_up()

    def committed(self) -> None:
        """A step was committed."""
        self._moves.committed()

    def _change(self, cells: Cells) -> None:
        membership = self._membership
        self._moves.make(cells, membership.devices, membership.device, membership.group)
        self.cells = cells
        self.sums.adopt(self.held)

    def digest(self, global_step: int) -> str:
        """sha256 over the hashes of all tensors, whoever holds them. Raises ReplicaError if holders differ."""

        whole, _ = self._compared("digest", global_step, f"at step {global_step}")
        text = "".join(f"{name}\0{value}\0" for name, value in sorted(whole.items()))
        return hashlib.sha256(text.encode()).hexdigest()

    def compare(self, call: str, global_step: int, when: str) -> list[int]:
        """Raise ReplicaError if holders of a tensor differ. On mixed device types they get the first one's: which."""
        return self._compared(call, global_step, when)[1]

    def _compared(self, call: str, global_step: int, when: str) -> tuple[dict[str, str], list[int]]:
        """The hashes of all tensors by name, and the ranks of those whose own differ from their first holder's."""
        is_mixed = self._membership.job.mixed

        def attempt() -> torch.Tensor:
            self._peers.announce(call, global_step).check()
            self.settle()
            mine = {name: _hash(value) for name, value in self.held.contents()}
            packed = gather_packed(mine, self._membership.group)
            if is_mixed:  # their kernels round differently
                self._align(_first_values(unpacked(packed))[1])
            return packed

        whole, odd = _first_values(unpacked(self._peers.agree(attempt)))
        if odd and not is_mixed:
            name, ranks = next(iter(odd.items()))
            one, other = (self._membership.devices[rank] for rank in ranks[:2])
            raise ReplicaError(
                f"devices {one} and {other} hold different values of {name} {when}. Something changes the model on "
                "some workers only: code behind `if trainer.is_lead`, an optimizer with state of its own, or a setting "
                "of it that was changed on some workers."
            )
        self._moves.take_copies()
        return whole, sorted({rank for _, *others in odd.values() for rank in others})

    def _align(self, odd: Mapping[str, Sequence[int]]) -> None:
        """Send the first holder's tensors to the others, of the units in which any is *odd*."""
        devices, group, me = self._membership.devices, self._membership.group, self._membership.device
        for unit in self.held.units:
            ranks = sorted({rank for name, _ in self.held.contents_of(unit) for rank in odd.get(name, ())})
            for rank in ranks[1:]:
                self._moves.move(unit, devices[ranks[0]], devices[rank], devices, me, group)


def _first_values(everyone: Sequence[Mapping[str, str]]) -> tuple[dict[str, str], dict[str, list[int]]]:
    """Of what workers hold, the first one's of each name; and of what differs, that one's rank and the others'."""
    whole: dict[str, str] = {}
    holders: dict[str, int] = {}
    odd: dict[str, list[int]] = {}
    for rank, theirs in enumerate(everyone):
        for name, value in theirs.items():
            if whole.setdefault(name, value) != value:
                odd.setdefault(name, [holders[name]]).append(rank)
            holders.setdefault(name, rank)
    return whole, odd


def _hash(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        sha = hashlib.sha256(f"{value.dtype} {tuple(value.shape)}\0".encode())
        sha.update(bytes_of(value))
        return sha.hexdigest()
    return repr(value)
