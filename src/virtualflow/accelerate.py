"""accelerate on VirtualFlow: ``from virtualflow.accelerate import Accelerator``. Its main process is the job's lead.

What ``prepare`` returns goes into a ``vf.Trainer``, which has the loop over the batch.
"""

from __future__ import annotations

from typing import Any

import accelerate
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

from virtualflow.errors import ConfigError
from virtualflow.train import solo


class Accelerator(accelerate.Accelerator):
    """accelerate's own, in a job of VirtualFlow: there is one process to it, and ``is_main_process`` on the lead."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        refused = {
            f"distributed_type {self.distributed_type.value}": (
                self.distributed_type != DistributedType.NO,
                "start the script with `vf run --devices 4 train.py`, and without `accelerate launch`.",
            ),
            "gradient_accumulation_steps": (
                self.gradient_accumulation_steps != 1,
                "give the DataLoader the whole batch: virtual nodes split it, however few devices there are.",
            ),
            "mixed_precision='fp16'": (self.scaler is not None, "use 'bf16', or a vf.Trainer with grad_scaler=."),
        }
        for name, (is_so, reason) in refused.items():
            if is_so:
                raise ConfigError(f"virtualflow.accelerate can't take {name}: {reason}")
        _follow_the_lead()


def _follow_the_lead() -> None:
    """Have all of accelerate ask the job who the main process is: that may change at any step."""
    index = property(lambda _: 0 if solo.leads() else 1, lambda *_: None)
    for state in (PartialState, AcceleratorState):
        state.process_index = state.local_process_index = index
    PartialState.use_distributed = property(lambda _: solo.installed() is not None)  # for its decorators alone
