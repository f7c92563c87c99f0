"""Train a PyTorch model on any number of devices and get the same bits."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from virtualflow.errors import VirtualFlowError

if TYPE_CHECKING:
    from virtualflow.train.script_state import State
    from virtualflow.train.seeding import seed
    from virtualflow.train.trainer import EpochReport, Trainer

# MKL reads this at its first product, which a script may make before any call of ours. See train/seeding.py.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

__version__ = "0.1.0"
__all__ = ["EpochReport", "State", "Trainer", "VirtualFlowError", "__version__", "seed"]

_LAZY = {
    "EpochReport": "virtualflow.train.trainer",
    "State": "virtualflow.train.script_state",
    "Trainer": "virtualflow.train.trainer",
    "seed": "virtualflow.train.seeding",
}


def __getattr__(name: str) -> Any:
    # Torch takes a second to import; `vf --help` and the schedulers need none of it.
    if name in _LAZY:
        from importlib import import_module

        if name == "Trainer":
            _register_plain_scripts()
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _register_plain_scripts() -> None:
    """Join the two sides that do not know each other: who trains, and who keeps the jobs of this machine."""
    from virtualflow.job import plain_script
    from virtualflow.train import solo

    solo.register_with(plain_script.register)
