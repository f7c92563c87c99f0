"""A group forms of the workers that the coordinator has named alone; every test with real jobs shows that it forms."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from virtualflow.errors import PeerLostError
from virtualflow.job.rendezvous import PostBox, TorchGroup, _listening_addresses

LOOPBACK = "127.0.0.1"
STRANGER = """
import socket, struct, sys
connections = []
for line in sys.stdin:
    host, port = line.split()
    for number in range(2):
        connections.append(socket.create_connection((host, int(port)), timeout=60))
        connections[-1].sendall(struct.pack("<q", number))
    print("connected", flush=True)
"""
Word = tuple[str, str, bytes]


def connected(size: int, on_word: Callable[[Word], None] = lambda _: None) -> list[PostBox]:
    """As many workers' posts, with somebody in between who passes on what each posts."""
    posts: list[PostBox] = []

    def posting(rank: int) -> Callable[[str, str, bytes], None]:
        def post(*word: *Word) -> None:
            on_word(word)
            for other in range(size):
                if other != rank:
                    posts[other].add(*word)

        return post

    posts.extend(PostBox(posting(rank)) for rank in range(size))
    return posts


def form(posts: PostBox, rank: int, size: int, patience_seconds: float = 60.0) -> TorchGroup:
    group = TorchGroup("generation/1", rank, size)
    group.form(posts, LOOPBACK, patience_seconds)
    return group


def test_who_waits_for_a_worker_that_was_lost_is_freed_at_once() -> None:
    (posts, _) = connected(2)
    group = TorchGroup("generation/1", 0, 2)

    def cut() -> None:
        time.sleep(0.2)
        group.cut_connections()
        posts.wake()

    threading.Thread(target=cut).start()
    with pytest.raises(PeerLostError, match="a worker was lost meanwhile"):
        group.form(posts, LOOPBACK, 600.0)  # longer than a test may take


def test_a_group_that_a_stranger_has_connected_to_is_left_before_anything_is_sent() -> None:
    """Gloo takes whoever connects first, and says the number of a connection, for the worker that it waits for."""
    stranger = subprocess.Popen([sys.executable, "-c", STRANGER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert stranger.stdin is not None
    assert stranger.stdout is not None

    def intrude(word: Word) -> None:
        if word[1] == "0/0":  # where the first one listens: the stranger is there before the others hear of it
            for host, port in _listening_addresses():
                stranger.stdin.write(f"{host} {port}\n".encode())  # type: ignore[union-attr]
                stranger.stdin.flush()  # type: ignore[union-attr]
                assert stranger.stdout.readline() == b"connected\n"  # type: ignore[union-attr]
            time.sleep(0.2)

    posts = connected(2, intrude)

    def outcome(rank: int) -> str:
        try:
            form(posts[rank], rank, 2, patience_seconds=30.0)
        except PeerLostError as error:
            return str(error)
        return "formed"

    try:
        with ThreadPoolExecutor(2) as pool:
            assert "another process has connected in a worker's place" in next(pool.map(outcome, range(2)))
    finally:
        stranger.communicate()
