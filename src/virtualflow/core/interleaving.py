"""Interleaved 1F1B, as Megatron has it: a pipeline through whose devices every virtual node passes several times.

With virtual nodes that are a multiple of the devices, a device waits (devices - 1) / rounds forwards and backwards of a
virtual node: the least that is possible. Others come in groups as even as can be, as if nodes were missing in each;
that never takes longer than GPipe.
"""

from __future__ import annotations

from collections.abc import Sequence

from virtualflow.core.mapping import DeviceId

RoundTurn = tuple[bool, int, int]  # whether it goes forward, which round, and the virtual node


def rounds_of(owners: Sequence[DeviceId]) -> int:
    """How often a route with these *owners* passes through its devices in one order; 0 if it does not."""
    devices = len(set(owners))
    rounds = len(owners) // devices
    return rounds if tuple(owners) == tuple(owners[:devices]) * rounds else 0


def turns(place: int, devices: int, rounds: int, nodes: Sequence[int]) -> list[RoundTurn]:
    """What the device at *place* runs, one after another."""
    groups = -(-len(nodes) // devices)
    places: list[int | None] = []
    for group in range(groups):
        members = nodes[len(nodes) * group // groups : len(nodes) * (group + 1) // groups]
        places += [*members, *[None] * (devices - len(members))]
    forwards: list[tuple[int, int | None]] = []
    backwards: list[tuple[int, int | None]] = []
    for first in range(0, len(places), devices):
        group_nodes = places[first : first + devices]
        forwards += [(number, node) for number in range(rounds) for node in group_nodes]
        backwards += [(number, node) for number in reversed(range(rounds)) for node in group_nodes]
    ahead = (rounds - 1) * devices + 2 * (devices - 1 - place)
    line = [(True, *forward) for forward in forwards[:ahead]]
    for done, backward in enumerate(backwards):
        line += [(True, *forward) for forward in forwards[ahead + done : ahead + done + 1]]
        line.append((False, *backward))
    return [(goes_forward, number, node) for goes_forward, number, node in line if node is not None]
