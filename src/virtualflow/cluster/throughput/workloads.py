"""The speeds that simulations use."""

from __future__ import annotations

from virtualflow.cluster.throughput.model import Profiled

# What a training step of the paper's 20-job trace took against the profiled one (V100), fitted on its static runs:
# reading data, updating, and whatever else a profile of bare steps leaves out.
PAPER_FACTORS = {"bert-base": 0.97, "resnet50": 1.21, "transformer": 1.17, "resnet56": 1.61}


def paper_speeds(*, even: bool = False) -> Profiled:
    """The paper's profiles, with the step-time model that fits its author's static runs.

    *even* maps virtual nodes as the paper's system does; ours leaves a device unused where it would only cost time.
    """
    return Profiled(slower=PAPER_FACTORS, even=even)
