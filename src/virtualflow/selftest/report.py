"""What a selftest leaves to send in: the machine, its devices, and whether each promise was kept."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import virtualflow
from virtualflow.core.device_choice import Accelerator
from virtualflow.selftest.promises import FAIL, Check

LEFT_OUT = ("files", "sources", "code", "commit", "hash_seed")  # facts of a script, not of a machine


@dataclass
class Report:
    """Filled while the selftest runs, so that one that is cut short has something to show, too."""

    devices: int
    accelerators: Sequence[Accelerator]
    is_quick: bool
    started: float = field(default_factory=time.time)
    facts: dict[str, Any] = field(default_factory=dict)  # those of a run: versions, device type, settings
    checks: list[Check] = field(default_factory=list)
    is_complete: bool = False

    @property
    def has_passed(self) -> bool:
        return self.is_complete and all(check.status != FAIL for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """Plain values. No names of people, machines or folders are among them."""
        return {
            "virtualflow": virtualflow.__version__,
            "passed": self.has_passed,
            "complete": self.is_complete,
            "quick": self.is_quick,
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.started)),
            "seconds": round(time.time() - self.started, 1),
            "devices": self.devices,
            "accelerators": [
                {"type": accelerator.device_type, "name": accelerator.name} for accelerator in self.accelerators
            ],
            "machine": {"system": platform.platform(), "cores": os.cpu_count()},
            "facts": {name: value for name, value in self.facts.items() if name not in LEFT_OUT},
            "checks": [asdict(check) for check in self.checks],
        }
