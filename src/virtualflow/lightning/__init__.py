"""Lightning on VirtualFlow: a strategy for ``L.Trainer``, and one for ``Fabric``. Only this folder imports it.

What it builds on is in ``train``: ``Trainer.enter``, ``open_pass``, ``gradients``. Start with ``strategy``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from virtualflow.lightning.fabric import VirtualFlowFabricStrategy
    from virtualflow.lightning.strategy import VirtualFlowStrategy

__all__ = ["VirtualFlowFabricStrategy", "VirtualFlowStrategy"]

_LAZY = {"VirtualFlowFabricStrategy": "fabric", "VirtualFlowStrategy": "strategy"}


def __getattr__(name: str) -> Any:
    # Lightning's Trainer takes seconds to import; who uses Fabric needs none of it.
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
