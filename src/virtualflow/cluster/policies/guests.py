"""Jobs beside others on the same devices: what must change for that."""

from __future__ import annotations

from collections.abc import Mapping

from virtualflow.cluster.job import ScheduledJob
from virtualflow.cluster.policies.base import NOTHING, Grant


def grants_with_guests(
    own: Mapping[str, Mapping[str, int]],
    guests: Mapping[str, tuple[str, Mapping[str, int]]],
    states: Mapping[str, ScheduledJob],
) -> dict[str, Grant]:
    """What changes: *own* has the devices of jobs that have some, *guests* each one's host and its part of those.

    Hosts come before their guests.
    """
    grants = {
        name: NOTHING for name, state in states.items() if state.devices and name not in own and name not in guests
    }
    for name, counts in own.items():
        if states[name].host or states[name].counts != counts:
            grants[name] = Grant(counts)
    for name, (host, counts) in guests.items():
        if states[name].host != host or states[name].counts != counts or host in grants:
            grants[name] = Grant(counts, beside=host)
    return grants
