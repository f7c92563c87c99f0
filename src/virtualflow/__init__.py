"""Train a PyTorch model on any number of devices and get the same bits."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from virtualflow.errors import VirtualFlowError

if TYPE_CHECKING:
    from virtualflow.streams.hugging_face import hf_stream
    from virtualflow.streams.packing import pack
    from virtualflow.streams.stream import Stream
    from virtualflow.streams.tar_files import tar_shards
    from virtualflow.streams.text_files import jsonl, text_lines
    from virtualflow.streams.zipping import zipped
    from virtualflow.train.loss import Loss
    from virtualflow.train.script_state import State
    from virtualflow.train.seeding import seed
    from virtualflow.train.trainer import EpochReport, Trainer

# MKL and cuBLAS read these at their first product, which a script may make before any call of ours.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
if "torch" not in sys.modules or not sys.modules["torch"].cuda.is_initialized():  # else exact mode refuses to run
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

__version__ = "0.1.0"
__all__ = [
    "EpochReport",
    "Loss",
    "State",
    "Stream",
    "Trainer",
    "VirtualFlowError",
    "__version__",
    "hf_stages",
    "hf_stream",
    "jsonl",
    "pack",
    "seed",
    "tar_shards",
    "text_lines",
    "zipped",
]

_LAZY = {
    "EpochReport": "virtualflow.train.trainer",
    "Loss": "virtualflow.train.loss",
    "State": "virtualflow.train.script_state",
    "Stream": "virtualflow.streams.stream",
    "Trainer": "virtualflow.train.trainer",
    "hf_stages": "virtualflow.transformers.hf_stages",
    "hf_stream": "virtualflow.streams.hugging_face",
    "jsonl": "virtualflow.streams.text_files",
    "pack": "virtualflow.streams.packing",
    "seed": "virtualflow.train.seeding",
    "tar_shards": "virtualflow.streams.tar_files",
    "text_lines": "virtualflow.streams.text_files",
    "zipped": "virtualflow.streams.zipping",
}


def __getattr__(name: str) -> Any:
    if name == "loggers":
        import virtualflow.loggers

        return virtualflow.loggers
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
