"""The entry point of ``vf``. Its commands take a while to load, and Ctrl-C must not end in a traceback meanwhile."""

from __future__ import annotations

import signal
from typing import Any


def main() -> None:
    """Run the command that the command line names."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing has started yet: the process just ends
    from virtualflow.cli.app import run_command

    signal.signal(signal.SIGINT, before)
    run_command()


def __getattr__(name: str) -> Any:
    """``app``, for programs that inspect the commands without running one."""
    if name != "app":
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from virtualflow.cli.app import app

    return app


if __name__ == "__main__":
    main()
