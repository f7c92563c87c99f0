"""The audit's exchange of a worker for a new one, which runs the script from the top."""

from __future__ import annotations

from virtualflow.core.roster import Roster
from virtualflow.job.wire_messages import ExchangeWorker

NOBODY_CAN_JOIN = "audit: no worker can join this job, so none was exchanged"
NO_SECOND_DEVICE = "audit: there is no second device for a worker to join, so none was exchanged"
GIVEN_UP = "audit: no worker was exchanged"
CAME_TOO_LATE = "audit: the job came to its end before a worker could be exchanged"


class Exchange:
    """The devices that the job is still to go through: without its last one and back, or with one more."""

    def __init__(self) -> None:
        self._moves: list[tuple[str, ...]] = []

    def plan(self, request: ExchangeWorker, roster: Roster, *, typed: bool) -> str | None:
        """Plan it; return why that is not possible. *typed* devices have names that only the user can give."""
        devices = roster.generation.devices
        if roster.closed or roster.guests:
            return NOBODY_CAN_JOIN
        if len(devices) > 1:
            self._moves = [devices[:-1], devices]
        elif len(roster.node_sizes) > 1 and request.device_type == "cpu" and not typed:
            self._moves = [(*devices, "1" if devices[0] == "0" else "0")]
        else:
            return NO_SECOND_DEVICE
        return None

    @property
    def is_planned(self) -> bool:
        return bool(self._moves)

    def next_move(self) -> tuple[str, ...]:
        """The devices that the job goes on with."""
        return self._moves.pop(0)

    def give_up(self) -> None:
        """Stay with the devices that the job has."""
        self._moves.clear()
