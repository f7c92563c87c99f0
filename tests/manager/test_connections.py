"""Connections that are slow, large or many: they end, and are in nobody's way meanwhile."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from tests.dashboard.served import TOKEN, Site, a_site
from tests.manager.managed import Service
from virtualflow.manager.api.connections import Limits

pytestmark = pytest.mark.timeout(300)
HASTY = Limits(stranger_seconds=0.5, head_seconds=0.5, body_seconds=0.5, bytes_per_second=1 << 20)
PATIENT = Limits(stranger_seconds=600.0, head_seconds=600.0, body_seconds=600.0)
KNOWN = f"Host: x\r\nAuthorization: Bearer {TOKEN}\r\n"
ASK = f"GET /api/devices HTTP/1.1\r\n{KNOWN}\r\n".encode()


@pytest.fixture
def hasty(vf_home: Path) -> Iterator[Site]:
    with a_site(vf_home, HASTY) as site:
        yield site


@pytest.fixture
def few(vf_home: Path) -> Iterator[Site]:
    """With room for few connections."""
    with a_site(vf_home, replace(PATIENT, connections=24, of_one_address=16, at_once=4)) as site:
        yield site


def connected(site: Site, address: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", site.port), timeout=120, source_address=(address, 0))


def until_cut(connection: socket.socket) -> bytes:
    """All that the other side says until it ends the connection."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while data := connection.recv(1 << 16):
            received += data
    return received


def answers(site: Site) -> bool:
    return len(site.trusted("GET", "/api/devices")) == 4


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"G",
        b"GET /api/state HTTP/1.1\r\n",
        b"GET /api/state HTTP/1.1\r\nHost: x\r\nX-Slow: ",
        b"POST /api/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nx",
        b"POST /api/jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        f"POST /api/jobs HTTP/1.1\r\n{KNOWN}Content-Length: 1000000\r\n\r\n{{".encode(),
        f"POST /api/jobs HTTP/1.1\r\n{KNOWN}Transfer-Encoding: chunked\r\n\r\n5\r\nab".encode(),
        f"POST /api/jobs HTTP/1.1\r\n{KNOWN}Expect: 100-continue\r\nContent-Length: 9\r\n\r\n".encode(),
        ASK,  # and nothing more
        ASK + b"GET /api/dev",
        ASK + f"POST /api/jobs HTTP/1.1\r\n{KNOWN}Content-Length: 9\r\n\r\n1".encode(),
    ],
)
def test_whoever_does_not_go_on_is_cut_off(hasty: Site, sent: bytes) -> None:
    with connected(hasty) as connection:
        connection.sendall(sent)
        received = until_cut(connection)
        assert received.count(b"HTTP/1.1 200") == sent.count(ASK)
        assert (b"HTTP/1.1 408" in received) == (sent not in (b"", ASK) and b"HTTP/1.1 401" not in received), received
    assert answers(hasty)


@pytest.mark.parametrize("begin", [b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ", ASK + b"GET / HTTP/1.1\r\nX-Slow: "])
def test_a_byte_now_and_then_does_not_help(hasty: Site, begin: bytes) -> None:
    with connected(hasty) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(begin)
        connection.settimeout(0.1)
        while True:  # until the test's own time is over
            connection.sendall(b"a")
            with contextlib.suppress(TimeoutError):
                if not connection.recv(1 << 16):
                    break
    assert answers(hasty)


def test_who_does_not_read_his_answers_is_cut_off_too(hasty: Site) -> None:
    with connected(hasty) as connection, contextlib.suppress(ConnectionError):
        while True:  # as above
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)
    assert answers(hasty)


def test_a_body_that_keeps_coming_has_the_time_it_needs(vf_home: Path) -> None:
    """Longer than the deadline would be without it, on any machine: the pieces wait for each other."""
    slow = replace(HASTY, body_seconds=0.2, bytes_per_second=1 << 10)
    body = json.dumps({"script": "job.py", "modules": {"job.py": "#" * (1 << 16)}}).encode()
    with a_site(vf_home, slow) as site, connected(site) as connection:
        head = (
            f"POST /api/jobs HTTP/1.1\r\n{KNOWN}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        connection.sendall(head.encode() + body[: 1 << 15])  # good for 32 s
        connection.settimeout(1.0)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(120)
        connection.sendall(body[1 << 15 :])
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 201")


def test_a_stream_is_not_cut_off(hasty: Site) -> None:
    with connected(hasty) as connection:
        connection.sendall(f"GET /api/stream HTTP/1.1\r\n{KNOWN}\r\n".encode())
        received = b""
        while received.count(b"event: state") < 1:
            received += connection.recv(1 << 16)
        connection.settimeout(2.0)  # four times as long as anything may take here
        with contextlib.suppress(TimeoutError):
            while True:
                assert connection.recv(1 << 16)
        connection.settimeout(120)
        hasty.a_job()
        while received.count(b"event: state") < 2:
            received += (more := connection.recv(1 << 16))
            assert more


@pytest.mark.parametrize("size", [1 << 15, 1 << 22])
def test_a_head_without_end_is_refused(few: Site, size: int) -> None:
    with connected(few) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX-Large: " + b"a" * size)
        assert until_cut(connection)[:12] in (b"HTTP/1.1 400", b"")
    assert answers(few)


def test_strangers_from_one_address_make_room_for_each_other_and_for_the_owner(few: Site) -> None:
    with contextlib.ExitStack() as owned:
        stream = owned.enter_context(connected(few))
        stream.sendall(f"GET /api/stream HTTP/1.1\r\n{KNOWN}\r\n".encode())
        assert stream.recv(1 << 16).startswith(b"HTTP/1.1 200")
        crowd = [owned.enter_context(connected(few)) for _ in range(200)]
        assert answers(few)  # from the very address
        assert all(until_cut(each) == b"" for each in crowd[: 200 - 16])
        few.a_job()
        while b"event: state" not in stream.recv(1 << 16):  # those who were let in stay
            pass
        for each in crowd[-8:]:  # the last ones are there still
            each.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert each.recv(1 << 16).startswith(b"HTTP/1.1 401")


def test_many_addresses_are_not_in_the_way_of_the_owner(few: Site) -> None:
    with contextlib.ExitStack() as owned:
        for number in range(100):
            owned.enter_context(connected(few, f"127.0.0.{2 + number}"))
        assert answers(few)


def test_a_flood_does_not_keep_the_owner_out(few: Site) -> None:
    """More connections than there may be, between the owner's and what he says."""
    with contextlib.ExitStack() as owned:
        for _ in range(20):
            for _ in range(30):
                owned.enter_context(connected(few))
            assert answers(few)


def test_a_manager_with_few_descriptors_keeps_some_for_its_jobs(vf_home: Path, tmp_path: Path) -> None:
    """Idle connections that are more than it may have files: it still answers, and still starts jobs."""
    few = 128
    service = Service(vf_home, "--devices", "1", descriptors=few)
    try:
        service.up()
        port = int(service.client.address.rpartition(":")[2])
        with contextlib.ExitStack() as owned:
            for _ in range(3 * few):
                owned.enter_context(socket.create_connection(("127.0.0.1", port), timeout=120))
            (tmp_path / "short.py").write_text("print('done')\n")
            assert service.submit(tmp_path / "short.py").until_over()["state"] == "DONE"
        assert "Too many open files" not in service.log
    finally:
        service.close()


def test_the_default_leaves_descriptors_for_others() -> None:
    limits = Limits.here()
    assert 8 <= limits.connections <= 512
    assert 2 * limits.at_once < limits.of_one_address < limits.connections


def test_nonsense_after_an_answer_is_the_end_of_that_connection(few: Site, caplog: pytest.LogCaptureFixture) -> None:
    with connected(few) as connection:
        connection.sendall(b"POST /api/jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 401")
        connection.sendall(b"cdenonsense\r\n\r\n")
        until_cut(connection)
    assert answers(few)
    assert not caplog.records


def test_whatever_is_sent_ends_one_connection_at_most_and_is_not_told(
    few: Site, caplog: pytest.LogCaptureFixture
) -> None:
    pieces = some.sampled_from(
        [b"GET / HTTP/1.1\r\n", b"Host: x\r\n", b"\r\n", b"POST /api/jobs HTTP/1.1\r\n", b"Content-Length: 5\r\n", ASK,
         b"Transfer-Encoding: chunked\r\n", b"5\r\nabcde\r\n", b"0\r\n\r\n", b"Connection: Upgrade\r\n", b"\xff\xfe",
         b"Upgrade: websocket\r\n", b"Expect: 100-continue\r\n", KNOWN.encode(), b"Content-Length: -1\r\n", b"\0",
         b"Cookie: =;=;\"\r\n", b"GET /login?code=%ff&code HTTP/1.0\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]
    )  # fmt: skip

    @settings(max_examples=150, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(some.lists(pieces | some.binary(max_size=20), max_size=12))
    def attack(sent: list[bytes]) -> None:
        with connected(few) as connection, contextlib.suppress(OSError):
            for piece in sent:
                connection.sendall(piece)
            connection.shutdown(socket.SHUT_WR)

    attack()
    assert answers(few)
    assert not caplog.records
