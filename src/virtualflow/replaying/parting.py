"""Where two replays of the same step part: in the model that they found, or in which virtual node, and where there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from virtualflow.replaying.step_replay import Replayed

STATE, INPUTS, FORWARD, LOSS, BACKWARD, GRADIENT = "state", "inputs", "forward", "loss", "backward", "gradient"


@dataclass(frozen=True, slots=True)
class Parting:
    """The first thing that differs, in the order in which it was computed."""

    phase: str  # one of the words above
    node: int | None = None
    module: str | None = None
    tensor: str | None = None

    def __str__(self) -> str:
        where = f"virtual node {self.node}: " if self.node is not None else ""
        match self.phase:
            case "state":
                return f"the step found another {self.tensor!r} in the model"
            case "inputs":
                return f"{where}it was given another {self.tensor!r}"
            case "forward" | "backward":
                what = "the output" if self.phase == FORWARD else "the gradient of the output"
                return f"{where}{self.phase}, in {what} of {self.module}"
            case "loss":
                return f"{where}the loss, although every module gave the same"
            case _:
                return f"{where}the gradient of {self.tensor!r}, although every module got the same"


def parting(one: Replayed, other: Replayed) -> Parting | None:
    """Where *one* and *other* part; None if all of it is equal."""
    if (name := _first_odd(one.state, other.state)) is not None:
        return Parting(STATE, tensor=name)
    mine, theirs = ({note["node"]: note for note in replayed.nodes} for replayed in (one, other))
    for node in sorted(mine.keys() & theirs.keys()):
        if (found := _in_node(node, mine[node], theirs[node])) is not None:
            return found
    return None


def _in_node(node: int, one: Mapping[str, Any], other: Mapping[str, Any]) -> Parting | None:
    if (name := _first_odd(one["inputs"], other["inputs"])) is not None:
        return Parting(INPUTS, node, tensor=name)
    calls = [pair for pair in zip_longest(one["modules"], other["modules"]) if pair[0] != pair[1]]
    first = next(((mine or theirs) for mine, theirs in calls), None)
    if first is not None and first[0] == FORWARD:
        return Parting(FORWARD, node, module=first[1])
    if one["loss_bits"] != other["loss_bits"] or one["weight"] != other["weight"]:
        return Parting(LOSS, node)
    if first is not None:
        return Parting(BACKWARD, node, module=first[1])
    if (name := _first_odd(one["gradients"], other["gradients"])) is not None:
        return Parting(GRADIENT, node, tensor=name)
    return None


def _first_odd(one: Mapping[str, str], other: Mapping[str, str]) -> str | None:
    return next((name for name in {**one, **other} if one.get(name) != other.get(name)), None)
