"""The entry point of ``vf``. The verbs take a while to load, and Ctrl-C must not end in a traceback meanwhile."""

from __future__ import annotations

import signal
from typing import Any


def main() -> None:
    """Run the verb that the command line names."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing has begun: this process just ends
    from virtualflow.cli.app import run_verb

    signal.signal(signal.SIGINT, before)
    run_verb()


def __getattr__(name: str) -> Any:
    """``app``, for those who look at the verbs without running one."""
    if name != "app":
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from virtualflow.cli.app import app

    return app


if __name__ == "__main__":
    main()
