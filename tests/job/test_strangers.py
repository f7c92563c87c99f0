"""Whoever connects to a job, and whatever they say: the job goes on, and hears those who belong to it."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import selectors
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.ports import free_port
from tests.system.test_identity import a_certificate
from virtualflow.cli.run_settings import LaunchOptions
from virtualflow.core.job_description import JobDescription
from virtualflow.core.job_state import JobState
from virtualflow.errors import LaunchError
from virtualflow.job import control, tokens
from virtualflow.job.folder import JobFolder
from virtualflow.job.listener import LOG_SECONDS, MAX_WAITING, PAUSE_SECONDS, WAIT_SECONDS, Listener
from virtualflow.job.spec import WorkerSpec
from virtualflow.job.status import JobStatus
from virtualflow.job.wire_messages import GetStatus, JobRequest, WorkAssigned
from virtualflow.system import tls
from virtualflow.system.identity import chosen, identity
from virtualflow.testing import FakeClock

LINES = [
    b"\n",
    b'{"type": "TokenProof", "answer": "\xc3\xa9", "nonce": ""}\n',
    b"[" * 3500 + b"\n",
    b"[" * 100_000 + b"\n",
    b'{"type": "TokenProof", "answer": 5, "nonce": "", "pid": "x"}\n',
    b'{"type": "TokenProof", "answer": null}\n{"type": "StopJob", "checkpoint": true}\n',
    b"\x80\x04garbage\n{}\n",
    b"\x16\x03\x01\x02\x00\x01\x00",
    b"GET / HTTP/1.1\r\nHost: job\r\n\r\n",
    b"x" * 1_000_000,
    b'{"type": "ResizeJob"}\n',
    b'{"type": "ResizeJob", "devices": "many"}\n',
    b'{"type": "MoveJob", "devices": 3}\n',
    b'{"type": "StopJob"}\n',
    b'{"type": {}}\n',
    b'{"type": "GetStatus", "extra": "\\ud800"}\n',
    b"[]\n",
    b'"stop"\n',
]


STATUS = JobStatus(JobState.RUNNING, 0, 4, (), ("0",), 0, 0, 0, 0, False, (), False)
WORK = WorkAssigned(WorkerSpec("job", JobDescription("s.py"), "", "a/1", ("0",), "127.0.0.1", 30.0), {})


class Job:
    """A listener as a coordinator has it, in this process, with a port and a socket for verbs."""

    def __init__(self, folder: Path, owned: ExitStack) -> None:
        self.owned = owned
        self.folder = JobFolder(folder)
        folder.mkdir()
        self.token_file = folder / "token"
        self.admitted: list[tuple[str, int]] = []
        self.requests: list[JobRequest] = []
        self.clock = FakeClock()
        self.selector = owned.enter_context(selectors.DefaultSelector())
        self.listener = Listener(self.selector, self._on_request, self._admit, self.clock)
        self.listener.listen_for_verbs(self.folder, owned)
        self.port = free_port()
        self.listener.listen_for_workers("127.0.0.1", self.port, self.token_file, identity(), owned)

    def _on_request(self, request: JobRequest) -> JobStatus:
        self.requests.append(request)
        return STATUS

    def _admit(self, wire: Any, host: str, process: int) -> None:
        self.admitted.append((host, process))
        wire.send(WORK)
        self.owned.callback(wire.close)

    def turn(self, seconds: float = 0.05) -> None:
        for key, _ in self.selector.select(seconds):
            if key.fileobj in self.selector.get_map():
                key.data()
        self.listener.tick()

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline
            self.turn()

    def joins(self) -> None:
        """Somebody who has the token is let in."""
        before = len(self.admitted)
        token = tokens.read_token(self.token_file)
        with ExitStack() as owned:
            pool = owned.enter_context(_thread(lambda: tokens.connect("127.0.0.1", self.port, token)))
            self.until(lambda: pool.done)
            joined = pool.value()
            joined.connection.close()
        assert (joined.address, joined.work) == ("127.0.0.1", WORK)
        assert len(self.admitted) == before + 1

    def answers(self) -> None:
        """A verb of the owner's is answered."""
        with _thread(lambda: control.ask(self.folder, GetStatus(), 30)) as pool:
            self.until(lambda: pool.done)
            assert pool.value() == STATUS


class _Running:
    def __init__(self, function: Callable[[], Any]) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._pool = ThreadPoolExecutor(1)
        self._future = self._pool.submit(function)

    @property
    def done(self) -> bool:
        return self._future.done()

    def value(self) -> Any:
        return self._future.result(30)

    def close(self) -> None:
        self._pool.shutdown(wait=False)


@contextlib.contextmanager
def _thread(function: Callable[[], Any]) -> Iterator[_Running]:
    running = _Running(function)
    try:
        yield running
    finally:
        running.close()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with ExitStack() as owned:
        yield Job(tmp_path / "job", owned)


def connect(job: Job, *, encrypted: bool) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", job.port), timeout=60)
    if not encrypted:
        return connection
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with _thread(lambda: context.wrap_socket(connection)) as shaking:
        job.until(lambda: shaking.done)
        encrypted_connection: socket.socket = shaking.value()
    return encrypted_connection


def verb_connection(job: Job) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(60)
    connection.connect(str(job.folder.control))
    return connection


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("where", ["plain", "encrypted", "verbs"])
def test_no_line_of_a_stranger_ends_a_job(job: Job, line: bytes, where: str) -> None:
    connection = verb_connection(job) if where == "verbs" else connect(job, encrypted=where == "encrypted")
    with connection, contextlib.suppress(OSError), _thread(lambda: connection.sendall(line)) as sending:
        for _ in range(4):
            job.turn()
        connection.shutdown(socket.SHUT_RDWR)
        del sending
    assert where == "verbs" or job.requests == []  # a stranger asks for nothing; the owner's socket takes any request
    job.answers()
    job.joins()


ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.text())


@settings(max_examples=int(os.environ.get("VF_FUZZ", "200")), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    data=st.one_of(
        st.binary(max_size=300),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["type", "answer"]), inner),
            max_leaves=8,
        ).map(lambda value: json.dumps(value).encode() + b"\n"),
        st.fixed_dictionaries(
            {"type": st.sampled_from(["TokenProof", "ResizeJob", "MoveJob"])},
            optional=dict.fromkeys(("answer", "nonce", "pid", "devices"), ANYTHING),
        ).map(lambda value: json.dumps(value).encode() + b"\n"),
    ),
    where=st.sampled_from(["verbs", "port", "behind TLS"]),
)
def test_random_bytes_end_nothing(shared_job: Job, data: bytes, where: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if where == "behind TLS":  # OpenSSL refuses random bytes by itself: this is what it would pass on
            patch.setattr(tls, "serve", lambda connection, _: connection)
        connection = verb_connection(shared_job) if where == "verbs" else connect(shared_job, encrypted=False)
        with connection, contextlib.suppress(OSError):
            connection.sendall(data)
            shared_job.turn(1.0)  # it is accepted
            shared_job.turn(0.0)  # and read
    shared_job.turn(0.0)
    assert shared_job.admitted == []


@pytest.fixture(scope="module")
def shared_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    folder = tmp_path_factory.mktemp("fuzz")
    with pytest.MonkeyPatch.context() as patch, ExitStack() as owned:
        patch.setenv("VF_HOME", str(folder / "home"))
        job = Job(folder / "job", owned)
        yield job
        job.answers()
        job.joins()


def test_a_port_scan_ends_nothing(job: Job) -> None:
    for _ in range(50):
        with socket.create_connection(("127.0.0.1", job.port), timeout=60) as scan:
            scan.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
    for _ in range(10):
        job.turn(0.0)
    job.joins()


@pytest.mark.parametrize("encrypted", [False, True])
def test_who_connects_and_says_nothing_keeps_nobody_out(
    job: Job, encrypted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "HANDSHAKE_SECONDS", 1000.0)
    before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    idle = []
    for _ in range(3 * MAX_WAITING):
        idle.append(connect(job, encrypted=encrypted))
        job.turn(0.0)
    assert job.listener.waiting <= MAX_WAITING
    # A connection that is let go has neither a thread nor a descriptor any more: others' come from the same stock.
    job.until(lambda: threading.active_count() <= threads + MAX_WAITING)
    assert len(os.listdir("/proc/self/fd")) <= before + len(idle) + 3 * MAX_WAITING
    job.joins()
    job.answers()
    for connection in idle:
        connection.close()


def test_who_never_stops_talking_keeps_nobody_from_being_heard(job: Job) -> None:
    over = threading.Event()

    def flood(connection: socket.socket) -> None:
        connection.settimeout(0.01)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while not over.is_set():
                with contextlib.suppress(TimeoutError):
                    connection.sendall(50 * b'{"type": "GetStatus"}\n')
                with contextlib.suppress(TimeoutError):
                    connection.recv(1 << 16)

    with verb_connection(job) as connection, _thread(lambda: flood(connection)) as flooding:
        try:
            for _ in range(3):
                job.answers()
                job.joins()
        finally:
            over.set()
            flooding.value()


def test_who_says_nothing_is_let_go_after_a_while(job: Job) -> None:
    with socket.create_connection(("127.0.0.1", job.port), timeout=60) as idle:
        job.until(lambda: job.listener.waiting == 1)
        job.clock.now += WAIT_SECONDS
        job.turn(0.0)
        assert job.listener.waiting == 1
        job.clock.now += 1.0
        job.turn(0.0)
        assert job.listener.waiting == 0
        assert idle.recv(1) == b""


def test_who_has_not_shown_the_token_may_send_little(job: Job) -> None:
    with connect(job, encrypted=True) as connection:
        job.until(lambda: job.listener.waiting == 1)
        connection.sendall(5000 * b"x")  # and no end of a line
        for _ in range(100):
            job.turn()
        assert job.listener.waiting == 0


def test_strangers_write_neither_orders_nor_much_to_the_terminal_and_the_log(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    def bother() -> None:
        with connect(job, encrypted=True) as connection:
            connection.sendall(b'{"type": "\\u001b]0;owned\\u0007' + 2000 * b"x" + b'"}\n')
            job.until(lambda: job.listener.waiting == 0)

    for _ in range(20):
        bother()
    assert len(caplog.messages) == 1
    assert "\\x1b]0;owned\\x07" in caplog.text
    assert not set("\x1b\x07") & set(caplog.text)
    assert len(caplog.messages[0]) < 500
    job.clock.now += LOG_SECONDS
    bother()
    assert len(caplog.messages) == 2
    assert "19 more" in caplog.messages[1]


def test_without_a_descriptor_left_the_job_listens_again_later(job: Job) -> None:
    spare: list[int] = []
    with ExitStack() as owned:
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        some_more = 64 + max(int(descriptor) for descriptor in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[0], some_more), before[1]))
        owned.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        client = socket.create_connection(("127.0.0.1", job.port), timeout=60)
        owned.callback(client.close)
        with contextlib.suppress(OSError):
            while True:
                spare.append(os.dup(client.fileno()))
        for _ in range(5):
            job.turn(0.0)
        for descriptor in spare:
            os.close(descriptor)
        job.clock.now += PAUSE_SECONDS + 1.0
        job.joins()


def test_a_worker_does_not_work_for_whoever_has_another_certificate(job: Job, tmp_path: Path) -> None:
    """A man in the middle has the address, and passes on what both sides say."""
    token = tokens.read_token(job.token_file)
    other = identity(tmp_path / "other")
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        _thread(lambda: tls.serve(listening.accept()[0], tls.server_context(other))) as between,
    ):
        with pytest.raises(LaunchError, match="is not the one of the token file"):
            tokens.connect("127.0.0.1", listening.getsockname()[1], token)
        between.value().close()


def test_a_worker_does_not_work_for_a_job_that_does_not_know_the_token(job: Job) -> None:
    token = tokens.read_token(job.token_file)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def pretend() -> None:
            with tls.serve(listening.accept()[0], tls.server_context(identity())) as line:
                line.sendall(b'{"type": "Challenge", "nonce": "00"}\n')
                line.recv(4096)
                line.sendall(b'{"type": "JobProof", "answer": "00"}\n{"type": "WorkAssigned"}\n')
                line.recv(1)

        with _thread(pretend), pytest.raises(LaunchError, match="does not have the token"):
            tokens.connect("127.0.0.1", listening.getsockname()[1], token)


def test_a_token_without_a_certificate_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("0123456789abcdef0123\n")
    token = tokens.read_token(file)
    with pytest.raises(LaunchError, match="names no certificate"):
        tokens.connect("127.0.0.1", 1, token)


def test_a_job_is_known_by_the_certificate_that_its_owner_names(tmp_path: Path) -> None:
    own = chosen(*a_certificate(tmp_path))
    file = tmp_path / "token"
    tokens.made_token(file, own)
    assert tokens.read_token(file).fingerprint == own.fingerprint != identity().fingerprint
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        _thread(lambda: tls.serve(listening.accept()[0], tls.server_context(own))) as serving,
    ):
        client, _ = tls.connect("127.0.0.1", listening.getsockname()[1], tokens.read_token(file).fingerprint, 10)
        client.close()
        serving.value().close()


def test_what_a_step_sends_is_said_to_be_open_where_others_could_read_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    certificate, key = a_certificate(tmp_path)
    for address, is_open in (("127.0.0.1:0", False), ("10.0.0.5:29400", True)):
        launch = LaunchOptions(listen=address, token_file=tmp_path / "token", tls_cert=certificate, tls_key=key)
        fields = launch.by_option()["listen"]
        assert (fields["tls_cert"], fields["tls_key"]) == (str(certificate), str(key))
        assert ("(gloo, NCCL) is not encrypted" in capsys.readouterr().err) == is_open
    with pytest.raises(LaunchError, match="are about --listen HOST:PORT"):
        LaunchOptions(tls_cert=certificate, tls_key=key).by_option()


def test_the_token_file_of_a_job_is_for_its_owner_and_keeps_its_secret(tmp_path: Path) -> None:
    file = tmp_path / "token"
    made = tokens.made_token(file, identity())
    assert oct(file.stat().st_mode & 0o777) == "0o600"
    assert made.fingerprint == identity().fingerprint
    assert tokens.made_token(file, identity()) == made
    file.write_text("0123456789abcdef0123\nsha256:" + 64 * "0" + "\n")  # that of another machine
    renewed = tokens.made_token(file, identity())
    assert renewed.secret == b"0123456789abcdef0123"
    assert renewed.fingerprint == made.fingerprint


@pytest.mark.parametrize("size", [1, 70_000, 5_000_000])
def test_a_tunnel_passes_on_every_byte_both_ways(size: int) -> None:
    own = identity()
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        _thread(lambda: tls.serve(listening.accept()[0], tls.server_context(own))) as serving,
    ):
        client, _ = tls.connect("127.0.0.1", listening.getsockname()[1], own.fingerprint, 10)
        server = serving.value()
    data = os.urandom(size)
    with client, server:
        for sender, receiver in ((client, server), (server, client)):
            with _thread(lambda sender=sender: sender.sendall(data)) as sending:  # type: ignore[misc]
                received = bytearray()
                while len(received) < size:
                    received += receiver.recv(1 << 16)
                sending.value()
            assert received == data
        client.close()
        assert server.recv(1) == b""
