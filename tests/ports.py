"""Ports for programs that must be told theirs."""

from __future__ import annotations

import random
import socket

FIRST, LAST = 20_000, 32_000  # the kernel gives none of these to whoever does not ask for it


def free_port() -> int:
    """A port of the loopback that nobody has; and nobody gets it by chance before it is used."""
    while True:
        port = random.SystemRandom().randint(FIRST, LAST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
