"""Who has which accelerator of this machine. The kernel gives it back when its process ends, however that comes.

A name for each, of which a machine has one: a socket's, which needs no file, and so no place where all users may write.
A locked file in VF_HOME says besides which job has it.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import time
from collections.abc import Sequence

from virtualflow.errors import LaunchError
from virtualflow.system import private_files
from virtualflow.system.home import home

CLAIM_SECONDS = 5.0  # for a process that has just been ended to be gone

_held: list[int] = []  # descriptors that are open until this process ends


def claim(identities: Sequence[str], owner: str) -> int:
    """Take the first of these accelerators that is free, until this process ends; return its place among them.

    *owner* is what others see. Raises LaunchError that names who has them.
    """
    private_files.make_folder(home() / "devices")
    deadline = time.monotonic() + CLAIM_SECONDS
    while True:
        for place, identity in enumerate(identities):
            if _take(identity, owner):
                return place
        if time.monotonic() > deadline:
            taken = ", ".join(f"{identity} by {_owner(identity)}" for identity in identities)
            raise LaunchError(
                f"every accelerator that this device could be is in use: {taken}. Two workers never share one. Wait "
                "for that job or stop it (`vf status`, `vf stop`), choose others with CUDA_VISIBLE_DEVICES, or use "
                "--device-type cpu."
            )
        time.sleep(0.05)


def _take(identity: str, owner: str) -> bool:
    descriptor = os.open(_path(identity), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        name.bind(f"\0virtualflow/{_plain(identity)}")  # abstract, so the same for all users of the machine
    except OSError:
        name.close()
        os.close(descriptor)
        return False
    os.truncate(descriptor, 0)
    os.write(descriptor, owner.encode())
    _held.extend((descriptor, name.detach()))
    return True


def _owner(identity: str) -> str:
    with open(_path(identity), opener=private_files.regular_opener) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read() or "another process"
    return "another user, or with another VF_HOME"


def _path(identity: str) -> str:
    return str(home() / "devices" / f"{_plain(identity)}.lock")


def _plain(identity: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", identity)
