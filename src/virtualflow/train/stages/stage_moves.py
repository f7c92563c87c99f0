"""Moving units of a model that is cut to the devices that are to hold them: whole, and only what a device lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from virtualflow.core import faults
from virtualflow.core.cells import Cells
from virtualflow.core.mapping import DeviceId
from virtualflow.core.membership import Group, Work
from virtualflow.core.wording import listed
from virtualflow.errors import StateLostError
from virtualflow.train import committed
from virtualflow.train.stages.held_stages import Contents, HeldStages
from virtualflow.train.stages.stage_cut import Cut, Unit

_TAG = 1 << 28  # above those of sums


class Pair:
    """Two workers of a group, as a group of their own: the first one sends."""

    reaches_devices = False

    def __init__(self, group: Group, peer: int, *, sends: bool) -> None:
        self._group = group
        self._peer = peer
        self._sends = sends

    def broadcast(self, tensor: torch.Tensor, source: int) -> Work:
        move = self._group.send if self._sends else self._group.receive
        return move(tensor, self._peer, _TAG + source)

    @property
    def rank(self) -> int:
        return 0 if self._sends else 1

    def max(self, tensor: torch.Tensor) -> Work:
        """The second one's, for both: whether what has come was damaged."""
        move = self._group.receive if self._sends else self._group.send
        return move(tensor, self._peer, _TAG + 1)

    def settle(self) -> None:
        """Nothing of it is under way on a device."""


class StageMoves:
    """Changes which stages the workers of a job hold."""

    def __init__(self, cut: Cut, held: HeldStages, device: torch.device) -> None:
        self._cut = cut
        self._held = held
        self._device = device
        self._arrived: dict[Unit, Contents] = {}  # by a change that has not come to its end

    def committed(self) -> None:
        """A step was committed: what had arrived before it is out of date."""
        self._arrived.clear()

    def make(self, cells: Cells, devices: Sequence[DeviceId], me: DeviceId, group: Group | None) -> None:
        """Have every device hold what it is to hold in *cells*; *devices* are the group's.

        Raises PeerLostError if one is lost meanwhile. Nothing is given up before all have what they need, and what has
        arrived by then is kept for the next try.
        """
        holders = self._holders(devices, group)
        self._check_nothing_is_lost(holders)
        for number, unit in enumerate(self._cut.units):
            for device in unit.holders(cells):
                if device in devices and device not in holders[number]:
                    self.move(unit, holders[number][0], device, devices, me, group)
        if group is not None:
            group.max(torch.zeros(1)).wait()
        stages = cells.stages_of(me)
        wanted = {unit: kept for unit, kept in self._arrived.items() if set(unit.stages) & set(stages)}
        self._held.change(stages, {unit: kept for unit, kept in wanted.items() if unit not in self._held.units})
        self._arrived.clear()

    def _holders(self, devices: Sequence[DeviceId], group: Group | None) -> list[list[DeviceId]]:
        """For each unit, who has it now."""
        mine = torch.tensor([u in self._held.units or u in self._arrived for u in self._cut.units], dtype=torch.int64)
        everyone = [torch.empty_like(mine) for _ in devices]
        if group is None:
            everyone = [mine]
        else:
            group.gather(mine, everyone).wait()
        return [
            [device for device, theirs in zip(devices, everyone, strict=True) if theirs[number]]
            for number in range(len(self._cut.units))
        ]

    def _check_nothing_is_lost(self, holders: list[list[DeviceId]]) -> None:
        lost = {stage for unit, held in zip(self._cut.units, holders, strict=True) if not held for stage in unit.stages}
        if lost:
            raise StateLostError(
                f"{listed('stage', sorted(lost))}: lost with the devices that held all copies. `vf run --resume` "
                "continues from the last checkpoint, or from the beginning if none was written yet; copies=2 keeps "
                "every stage on two devices."
            )

    def take_copies(self) -> None:
        """Set what is held to what has arrived of it."""
        for unit, contents in self._arrived.items():
            self._held.put(unit, contents)
        self._arrived.clear()

    def move(
        self, unit: Unit, source: DeviceId, to: DeviceId, devices: Sequence[DeviceId], me: DeviceId, group: Group | None
    ) -> None:
        """Send *unit* from one device to another. All go through the moves in the same order: nobody waits in vain."""
        if group is None or me not in (source, to):
            return
        if me == source:
            contents = self._held.take(unit) if unit in self._held.units else self._arrived[unit]
            faults.reach("send state")
            committed.send(contents, cast(Group, Pair(group, devices.index(to), sends=True)))
        else:
            faults.reach("receive state")
            pair = Pair(group, devices.index(source), sends=False)
            self._arrived[unit] = committed.receive(cast(Group, pair), self._device)
