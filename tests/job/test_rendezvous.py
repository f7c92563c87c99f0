"""A group forms of the workers that the coordinator has named alone; every test with real jobs shows that it forms."""

from __future__ import annotations

import gc
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from virtualflow.core.job_description import JobDescription
from virtualflow.errors import PeerLostError
from virtualflow.job.group_posts import PostBox
from virtualflow.job.open_sockets import listening_addresses
from virtualflow.job.post_office import packed
from virtualflow.job.rendezvous import TorchGroup
from virtualflow.job.spec import WorkerSpec
from virtualflow.job.wire_messages import GroupLetters, GroupPost, Message
from virtualflow.testing import FakeMember

LOOPBACK = "127.0.0.1"
STRANGER = """
import contextlib, socket, struct, sys
connections = []
for line in sys.stdin:
    host, port = line.split()
    with contextlib.suppress(ConnectionError):  # the group of an earlier test, which is being taken apart
        for number in range(2):
            connections.append(socket.create_connection((host, int(port)), timeout=60))
            connections[-1].sendall(struct.pack("<q", number))
    print("connected", flush=True)
"""
ECHO = """
import gc
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    with server.accept()[0] as connection:
        connection.sendall(connection.recv(10))
"""
Word = GroupPost | GroupLetters


def connected(size: int, on_word: Callable[[Word], None] = lambda _: None) -> list[PostBox]:
    """As many workers' posts, with somebody in between who passes on what each posts."""
    posts: list[PostBox] = []

    def send(word: Word) -> None:
        on_word(word)
        for rank in range(size):
            value = word.value if isinstance(word, GroupPost) else word.values[rank]
            posts[rank].add(word.group, [(word.key, value)])

    posts.extend(PostBox(send) for _ in range(size))
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


@pytest.mark.parametrize(("elements", "at_once"), [(10, 1), (1_000_000, 1), (1_000_000, 5)])
def test_a_broadcast_that_is_cut_in_the_middle_ends_at_once(elements: int, at_once: int) -> None:
    """Gloo leaves workers waiting for what was on its way just then: of twenty cuts, that hits about one to six."""
    cut_in_the_middle(lambda group: broadcast_until_it_fails(group, elements, at_once))


def cut_in_the_middle(send_until_it_fails: Callable[[TorchGroup], str]) -> None:
    """Twenty times: three workers send, and all of their connections are cut; each must notice."""
    for number in range(20):
        posts = connected(3)
        groups = [TorchGroup(f"generation/{number}", rank, 3) for rank in range(3)]
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda rank: groups[rank].form(posts[rank], LOOPBACK, 600.0), range(3)))  # noqa: B023
            ends = [pool.submit(send_until_it_fails, group) for group in groups]
            time.sleep(0.01 + 0.001 * number)
            for group in groups:
                group.cut_connections()
            assert [end.result() for end in ends] == ["lost"] * 3
        for group in groups:
            group.break_off()


def broadcast_until_it_fails(group: TorchGroup, elements: int, at_once: int) -> str:
    tensors = [torch.zeros(elements) for _ in range(at_once)]  # gloo works at two, the others wait their turn
    while True:
        try:
            for work in [group.broadcast(tensor, place % group.size) for place, tensor in enumerate(tensors)]:
                work.wait()
        except PeerLostError:
            return "lost"


@pytest.mark.parametrize("elements", [10, 1_000_000])
def test_a_message_that_is_cut_in_the_middle_ends_at_once_on_both_sides(elements: int) -> None:
    """Gloo leaves its sender waiting, and its receiver: of twenty cuts, that hits five to ten messages."""
    cut_in_the_middle(lambda group: pass_on_until_it_fails(group, elements))


def pass_on_until_it_fails(group: TorchGroup, elements: int) -> str:
    tensors = torch.zeros(elements), torch.zeros(elements)
    while True:
        try:
            received = group.receive(tensors[0], (group.rank - 1) % group.size, 5)
            sent = group.send(tensors[1], (group.rank + 1) % group.size, 5)
            received.wait()
            sent.wait()
        except PeerLostError:
            return "lost"


def test_a_group_is_left_at_once_although_messages_were_cut_that_nobody_waits_for() -> None:
    """Gloo may still write what it receives: whoever leaves waits for that alone."""
    posts = connected(2)
    groups = [TorchGroup("generation/1", rank, 2) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda rank: groups[rank].form(posts[rank], LOOPBACK, 600.0), range(2)))
    tensors = [torch.zeros(20_000_000) for _ in groups]
    groups[1].receive(tensors[1], 0, 5)
    groups[1].receive(tensors[1], 0, 6)
    groups[0].send(tensors[0], 1, 5)
    for group in groups:
        group.break_off()


def test_a_connection_that_the_script_opens_meanwhile_is_not_cut_with_the_group() -> None:
    posts = connected(2)
    with subprocess.Popen([sys.executable, "-c", ECHO], stdout=subprocess.PIPE) as echo, ThreadPoolExecutor(2) as pool:
        assert echo.stdout is not None
        groups = [TorchGroup("generation/1", rank, 2) for rank in range(2)]
        with socket.create_connection((LOOPBACK, int(echo.stdout.readline()))) as script:
            list(pool.map(lambda rank: groups[rank].form(posts[rank], LOOPBACK, 60.0), range(2)))
            for group in groups:
                group.break_off()
            script.sendall(b"still here")
            assert script.recv(10) == b"still here"


def test_a_group_that_a_stranger_has_connected_to_is_left_before_anything_is_sent() -> None:
    """Gloo takes whoever connects first, and says the number of a connection, for the worker that it waits for."""
    stranger = subprocess.Popen([sys.executable, "-c", STRANGER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert stranger.stdin is not None
    assert stranger.stdout is not None

    def intrude(word: Word) -> None:
        if word.key == "0/0":  # where the first one listens: the stranger is there before the others hear of it
            for host, port in listening_addresses():
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


def test_a_message_that_was_waited_for_holds_no_memory() -> None:
    """Gradients and state travel in messages: memory of theirs that lingers would count twice."""
    posts = connected(2)
    with ThreadPoolExecutor(2) as pool:
        groups = list(pool.map(lambda rank: form(posts[rank], rank, 2), range(2)))
    sent, received = torch.ones(1000), torch.zeros(1000)
    memories = [weakref.ref(sent), weakref.ref(received)]
    works = [groups[1].receive(received, 0, 5), groups[0].send(sent, 1, 5)]
    for work in works:
        work.wait()
    assert received.sum() == 1000
    del sent, received
    gc.collect()
    assert [memory() for memory in memories] == [None, None]
    for group in groups:
        group.break_off()


def test_a_fake_member_posts_what_a_real_worker_does() -> None:
    real: list[Word] = []
    posts = connected(3, real.append)
    with ThreadPoolExecutor(3) as pool:
        for group in pool.map(lambda rank: form(posts[rank], rank, 3), range(3)):
            group.break_off()
    faked: list[Word] = []
    spec = WorkerSpec("job", JobDescription("script.py"), "/job", "1", ("0", "1", "2"), LOOPBACK, 30.0)

    def keep(message: Message) -> None:
        if isinstance(message, GroupPost | GroupLetters):
            faked.append(message)

    member = FakeMember(spec, keep, virtual_nodes=3)
    member.begin()
    member.take(packed("generation/0", {f"{kind}/{rank}": b"" for kind in ("0", "worker") for rank in range(3)}))
    own = [word for word in real if word.key in ("worker/1", "0/1", "connections/1")]
    assert [described(word) for word in faked] == [described(word) for word in own]


def described(word: Word) -> tuple[str, int]:
    """The key, with the bytes of a post, or the number of letters: in one process, all see the same connections."""
    return word.key, len(word.value) if isinstance(word, GroupPost) else len(word.values)
