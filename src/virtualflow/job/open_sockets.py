"""This process's internet sockets, seen from outside of the library that has opened them (Linux)."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
from collections.abc import Iterator

Endpoints = tuple[str, int, str, int]  # of one connection: here, and there
Opened = tuple[int, int]  # a descriptor, and the inode behind it: the number alone may be another socket's later


def is_connected(opened: Opened) -> bool:
    """Whether a socket is still the one that it was, and its peer has not hung up."""
    if not is_open(opened):
        return False
    watch = select.poll()
    watch.register(opened[0], select.POLLRDHUP)
    return not watch.poll(0)


def is_open(opened: Opened) -> bool:
    """Whether a socket's descriptor is still its own."""
    try:
        return os.fstat(opened[0]).st_ino == opened[1]
    except OSError:
        return False


def shut_down(sockets: set[Opened]) -> None:
    """Shut down those of *sockets* that are still connected, here and for their peers."""
    # A descriptor's number may be another socket's by now, even a listening one's.
    for descriptor, _ in sockets & connected_sockets():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            connection.shutdown(socket.SHUT_RDWR)


def endpoints(descriptor: int) -> Endpoints | None:
    try:
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            return (*connection.getsockname()[:2], *connection.getpeername()[:2])
    except OSError:  # closed by now: not one of the group's
        return None


def listening_addresses() -> set[tuple[str, int]]:
    """Where this process listens."""
    return {
        opened.getsockname()[:2]
        for _, _, opened in _internet_sockets()
        if opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    }


def connected_sockets() -> set[Opened]:
    """The descriptors and inodes of this process's connected internet sockets.

    Never a listening one: gloo ends the process if that is touched.
    """
    connected = set()
    for descriptor, inode, opened in _internet_sockets():
        with contextlib.suppress(OSError):
            opened.getpeername()
            connected.add((descriptor, inode))
    return connected


def _internet_sockets() -> Iterator[tuple[int, int, socket.socket]]:
    """This process's internet sockets: descriptor, inode, and a copy to look at."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            status = os.fstat(int(name))
            if not stat.S_ISSOCK(status.st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as opened:
                if opened.family in (socket.AF_INET, socket.AF_INET6):
                    yield int(name), status.st_ino, opened
