"""The entry point of ``vf``. Its commands take a while to load, and Ctrl-C must not end in a traceback meanwhile."""

from __future__ import annotations

import signal
import sys
from functools import cache
from typing import Any


def main() -> None:
    """Run the command that the command line names."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing has started yet: the process just ends
    from virtualflow.cli.app import run_command
    from virtualflow.cli.commands import app_of, needed

    app = app_of(needed(sys.argv[1:]))
    signal.signal(signal.SIGINT, before)
    run_command(app)


def __getattr__(name: str) -> Any:
    """``app``, for programs that inspect the commands without running one."""
    if name != "app":
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return _whole_app()


@cache
def _whole_app() -> Any:
    from virtualflow.cli.commands import ALL, app_of

    return app_of(ALL)


if __name__ == "__main__":
    main()
