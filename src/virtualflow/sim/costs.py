"""What starting, resizing and restarting cost. Settings, with the paper's and our own figures by name."""

from __future__ import annotations

from dataclasses import dataclass

from virtualflow.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds. While a job grows in the background, its old devices go on working and its new ones do not yet."""

    name: str
    boot: float = 0.0  # a new job, before its first step
    resume: float = 0.0  # a suspended one, before its next step
    shrink: float = 0.0  # a pause
    grow: float = 0.0  # in the background
    grow_pause: float = 0.0  # when the new devices take part
    restart: float = 0.0  # from a checkpoint, for policies that cannot resize

    @property
    def longest(self) -> float:
        """The most time that a job can be kept from its next step by one change."""
        return max(self.boot, self.resume, self.shrink, self.grow, self.grow_pause, self.restart)


# Medians of the paper's author's public logs.
PAPER = Costs("paper", boot=86.0, resume=86.0, shrink=0.7, grow=78.0, restart=86.0)
# Medians of benchmarks/results/elastic.json, on two CPU cores; a test compares them. The pauses are those of a model
# with 25 million parameters, about a ResNet-50. Starting is the processor time of ``vf run`` without a step, mostly
# loading torch; a worker that joins is forked with torch loaded.
MEASURED = Costs("measured", boot=5.7, resume=5.7, shrink=0.17, grow=0.245, grow_pause=0.249, restart=5.7)
NONE = Costs("none")
BY_NAME = {costs.name: costs for costs in (PAPER, MEASURED, NONE)}


def named(name: str) -> Costs:
    if name not in BY_NAME:
        raise ConfigError(f"--costs {name}: expected one of {', '.join(BY_NAME)}")
    return BY_NAME[name]
