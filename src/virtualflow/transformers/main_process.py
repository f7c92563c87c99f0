"""Which device a process has, and whether it is the main one: as accelerate tells transformers, callbacks, scripts."""

from __future__ import annotations

import os
from typing import Any

from accelerate.state import AcceleratorState, PartialState

from virtualflow.core.membership import Membership
from virtualflow.train import accelerators, solo


def prepare(args: Any, job_id: str) -> None:
    """Give a job's worker the device that it has claimed, and the reports of all of its leads one run."""
    if solo.installed() is None:
        return
    _ = args.device  # accelerate gets to know this process, and takes the first device that it sees
    device = accelerators.return_to_own()
    args.__dict__["_setup_devices"] = PartialState._shared_state["device"] = device
    args._n_gpu = int(device.type != "cpu")
    os.environ.setdefault("TENSORBOARD_LOGGING_DIR", os.path.join(args.output_dir, "runs", job_id))
    os.environ.setdefault("WANDB_RUN_ID", job_id)
    os.environ.setdefault("WANDB_RESUME", "allow")


def take_rank(membership: Membership) -> bool:
    """Make the lead's process the main one, and no other; return whether this is the lead's."""
    is_lead = not membership.joining and membership.devices[0] == membership.device
    for shared in (PartialState._shared_state, AcceleratorState._shared_state):
        if shared and solo.installed() is not None:
            shared["process_index"] = shared["local_process_index"] = int(not is_lead)
    return is_lead
