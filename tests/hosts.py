"""Other hosts, on this one: network namespaces with a switch between them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def hosts(count: int) -> Iterator[list[list[str]]]:
    """For each host, what goes before a command that is to run there. Their addresses are 10.77.0.1, 10.77.0.2, ..."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2: run as root after apt-get install iproute2")
    switch, *names = [f"vf{os.getpid()}-{number}" for number in range(count + 1)]
    commands = [
        *(f"ip netns add {name}" for name in (switch, *names)),
        f"ip -n {switch} link add switch type bridge",
        f"ip -n {switch} link set switch up",
    ]
    for number, name in enumerate(names, 1):
        commands += [
            f"ip -n {switch} link add port{number} type veth peer name cable netns {name}",
            f"ip -n {switch} link set port{number} master switch up",
            f"ip -n {name} addr add 10.77.0.{number}/24 dev cable",
            f"ip -n {name} link set lo up",
            f"ip -n {name} link set cable up",
        ]
    try:
        for command in commands:
            subprocess.run(command.split(), check=True, capture_output=True, timeout=60)
        yield [["ip", "netns", "exec", name] for name in names]
    finally:
        for name in (switch, *names):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True, timeout=60)
