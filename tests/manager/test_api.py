"""The manager's HTTP API: who is let in, what is refused, and that nothing that is sent makes it fall over."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import response_schema_conformance

from tests.cli.test_run import VF
from tests.hosts import hosts
from tests.manager.managed import Service, until
from virtualflow.cluster.policies import registry
from virtualflow.core.devices import parse_pools
from virtualflow.errors import ManagerError
from virtualflow.job.listener import listen
from virtualflow.manager.api.serving import serving
from virtualflow.manager.api.views import ClusterSource
from virtualflow.manager.client import Client
from virtualflow.manager.description import Cluster
from virtualflow.manager.manager import Manager
from virtualflow.manager.records import Records
from virtualflow.manager.token_book import TokenBook

pytestmark = pytest.mark.timeout(400)  # a busy machine decides nothing

TOKEN = "correct horse battery staple"
PATHS = ["/", "/docs", "/openapi.json", "/metrics", "/static/index.html", "/api/state", "/api/jobs", "/api/jobs/x",
         "/api/stream", "/login", "/login?code=x", "/nothing"]  # fmt: skip


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A real server over a manager that starts nothing; with its home."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch, listen("127.0.0.1", 0) as listening:
        patch.setenv("VF_HOME", str(home))
        records = Records(home / "jobs.sqlite")
        manager = Manager(Cluster(tuple(parse_pools("4")), {}), registry.make("wfs"), records)
        with serving(ClusterSource(manager), TokenBook(TOKEN.encode()), listening):
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", home
        records.close()


@pytest.fixture
def address(served: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("VF_HOME", str(served[1]))  # where the manager looks: it is in this process
    return served[0]


def ask(
    address: str, verb: str, path: str, body: Any = None, headers: dict[str, str] | None = None, **more: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)
    text = body if isinstance(body, bytes) or body is None else json.dumps(body)
    connection.request(verb, path, text, {**(headers or {}), **more})
    answer = connection.getresponse()
    answered = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return answered


def known(token: str = TOKEN) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        known("wrong"),
        known(""),
        known(TOKEN + "x"),
        {"Authorization": TOKEN},
        {"Authorization": f"Basic {TOKEN}"},
        {"Cookie": "vf_session=guessed"},
        {"Cookie": "vf_session"},
        {"Authorization": "Bearer \xff\xfe"},
        {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "x" * 24, "Sec-WebSocket-Version": "13"},
    ],
)
def test_without_the_token_there_is_a_401_and_nothing_else(address: str, headers: dict[str, str]) -> None:
    for path in PATHS:
        status, answer_headers, body = ask(address, "GET", path, headers=headers)
        assert (status, body) == (401, b""), path
        assert answer_headers.keys() <= {"www-authenticate", "content-length", "date", "server"}
    for path in ("/api/jobs", "/api/cluster/down", "/api/login"):
        assert ask(address, "POST", path, {}, headers=headers)[0] == 401


@pytest.mark.parametrize("path", ["/", "/login", "/login?code=used"])
def test_a_person_who_is_not_signed_in_reads_what_to_do(address: str, path: str) -> None:
    status, answer_headers, body = ask(
        address, "GET", path, headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    )
    port = address.rpartition(":")[2]
    assert (status, answer_headers["content-type"]) == (401, "text/html; charset=utf-8")
    assert b"vf dashboard" in body
    assert f"ssh -L {port}:127.0.0.1:{port}".encode() in body
    assert answer_headers["content-security-policy"].startswith("default-src 'self'")
    assert ask(address, "GET", "/api/state", headers={"Accept": "text/html"})[2] == b""


def test_requests_that_are_too_large_are_refused(address: str) -> None:
    with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=60) as connection:
        head = (
            f"POST /api/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: {1 << 40}\r\n\r\n"
        )
        connection.sendall(head.encode())
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 413")
    # In pieces, nobody knows how large it will be.
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)
    pieces = (b"x" * (1 << 20) for _ in range(40))
    try:
        connection.request("POST", "/api/jobs", pieces, known(), encode_chunked=True)
        assert 400 <= connection.getresponse().status < 500
    except (OSError, http.client.HTTPException):
        pass  # it was cut off
    connection.close()
    assert ask(address, "GET", "/api/state", headers=known())[0] == 200


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ({"script": "/no/such/script.py"}, 409, "there is no script /no/such/script.py"),
        ({"demand": 9}, 409, "the cluster has 4 device"),
        ({"demand": 10**30}, 422, "less than or equal"),
        ({"demand": float("nan")}, 422, "demand"),
        ({"priority": -1}, 409, "a priority is a number above 0"),
        ({"priority": float("inf")}, 409, "a priority is a number above 0"),
        ({"name": "../x"}, 409, "can't be used"),
        ({"name": "a\0b"}, 409, "can't be used"),
        ({"environment": {"a": "\0"}}, 409, "a zero byte"),
        ({"modules": {"job.py": "", "../x.py": ""}}, 409, "outside of its folder"),
        ({"unknown": 1}, 422, "Extra inputs"),
        ({"retries": -1}, 422, "greater than or equal to 0"),
        ({"virtual_nodes": 0}, 409, "0 virtual nodes can't run on 1 device"),
    ],
)
def test_a_job_that_can_not_be_taken_is_refused_with_the_reason(
    address: str, body: dict[str, Any], status: int, reason: str
) -> None:
    whole = ({"script": "job.py", "modules": {"job.py": ""}} | body) if "script" not in body else body
    answer = ask(address, "POST", "/api/jobs", whole, headers=known())
    assert answer[0] == status, answer
    assert reason in answer[2].decode()
    for junk in (b"", b"{", b"[" * 100_000, b'{"script": 1e999}', b'"\\ud800"', b"\xff"):
        assert 400 <= ask(address, "POST", "/api/jobs", junk, headers=known())[0] < 500


def test_what_is_sent_at_random_never_makes_a_500(
    address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json", headers=known())
    seen = set()
    operations = [each.ok() for each in schema.get_all_operations()]
    assert len(operations) >= 18
    endless = "/api/stream"
    for operation, mode in itertools.product(operations, GenerationMode):
        if operation.path == endless:
            continue

        @settings(
            max_examples=12, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def attack(case: Any) -> None:
            answer = case.call(headers=known())
            seen.add(answer.status_code)
            case.validate_response(answer, checks=[schemathesis.checks.not_a_server_error, response_schema_conformance])

        with contextlib.suppress(Unsatisfiable):  # of what can't be wrong, there is no wrong example
            attack()
    assert {200, 404, 422} <= seen
    assert not any(status >= 500 for status in seen)


def test_metrics_are_what_prometheus_reads(address: str) -> None:
    status, headers, body = ask(address, "GET", "/metrics", headers=known())
    assert status == 200
    assert headers["content-type"].startswith("text/plain")
    line = re.compile(r'[a-z_]+(\{[a-z]+="(\\.|[^"\\])*"(,[a-z]+="(\\.|[^"\\])*")*\})? -?[0-9.e+-]+(inf)?')
    families = set()
    for text in body.decode().splitlines():
        if text.startswith("# TYPE "):
            families.add(text.split()[2])
        elif not text.startswith("#"):
            assert line.fullmatch(text), text
            name = re.split(r"[{ ]", text)[0]
            assert any(name in (each, f"{each}_bucket", f"{each}_sum", f"{each}_count") for each in families), text
    assert {"vf_jobs", "vf_devices", "vf_pause_seconds"} <= families
    assert 'vf_devices{type="cpu",use="idle"} ' in body.decode()


def test_the_stream_tells_of_changes(address: str) -> None:
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)
    connection.request("GET", "/api/stream", headers=known())
    answer = connection.getresponse()
    assert answer.headers["content-type"].startswith("text/event-stream")

    def state() -> dict[str, Any]:
        while not (line := answer.readline()).startswith(b"data: "):
            pass
        data: dict[str, Any] = json.loads(line[6:])
        return data

    assert state()["mode"] == "cluster"
    body = {"script": "job.py", "modules": {"job.py": ""}, "name": "told"}
    assert ask(address, "POST", "/api/jobs", body, headers=known())[0] == 201
    while not any(job["name"] == "told" for job in state()["jobs"]):
        pass
    connection.close()


def test_a_thousand_jobs_wait_and_fifty_clients_ask_at_once(tmp_path: Path) -> None:
    service = Service(tmp_path / "home", "--devices", "1")
    service.up()
    try:
        client = service.client
        client.post("/api/devices/0/drain")
        body = {"script": "job.py", "modules": {"job.py": "pass\n"}, "environment": {"PATH": "/bin"}}

        def hand_in(number: int) -> str:
            return str(client.post("/api/jobs", name=f"job {number}", **body)["id"])

        with ThreadPoolExecutor(50) as clients:
            ids = list(clients.map(hand_in, range(1000)))
            assert len(set(ids)) == 1000

            def use(number: int) -> int:
                job = f"/api/jobs/{ids[number * 7]}"
                client.post(f"{job}/priority", priority=1.0 + number)
                assert client.get(job)["priority"] == 1.0 + number
                if number % 10 == 0:
                    client.post(f"{job}/cancel")
                return len(client.get("/api/jobs"))

            assert set(clients.map(use, range(50))) == {1000}
        service.kill()
        service.up()
        jobs = {job["id"]: job for job in service.client.get("/api/jobs")}
        assert jobs.keys() == set(ids)
        assert [job["state"] for job in jobs.values()].count("CANCELLED") == 5
        assert "the cluster has no devices at the moment" in jobs[ids[1]]["reason"]
    finally:
        service.close()


def test_a_manager_that_others_can_reach_is_encrypted_and_known_by_its_certificate(tmp_path: Path) -> None:
    with hosts(2) as (here, there):
        home = tmp_path / "home"
        environment = os.environ | {"VF_HOME": str(home)}
        command = [*here, *VF, "cluster", "up", "--foreground", "--devices", "1", "--listen", "10.77.0.1:29444"]
        (home / "cluster").mkdir(parents=True)
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as manager:
            try:
                until((home / "cluster" / "address").exists)
                assert (home / "cluster" / "address").read_text() == "https://10.77.0.1:29444\n"

                def queue(address: str, token: Path) -> subprocess.CompletedProcess[str]:
                    elsewhere = {"VF_HOME": str(tmp_path / "there"), "VF_CLUSTER": address, "VF_TOKEN_FILE": str(token)}
                    asked = [*there, *VF, "queue", "--json"]
                    return subprocess.run(
                        asked, env=os.environ | elsewhere, capture_output=True, text=True, timeout=100, check=False
                    )

                token = home / "cluster" / "token"
                assert queue("https://10.77.0.1:29444", token).stdout.strip() == "[]"
                secret = token.read_text().split()[0]
                other = tmp_path / "other"
                other.write_text(f"{secret}\nsha256:{64 * '0'}\n")
                assert "is not the one of the token file" in queue("https://10.77.0.1:29444", other).stderr
                assert "use https://" in queue("http://10.77.0.1:29444", token).stderr
            finally:
                manager.kill()


def test_a_client_that_finds_nobody_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ManagerError, match="no manager runs here"):
        Client.find()
    with listen("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
    monkeypatch.setenv("VF_CLUSTER", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("VF_TOKEN_FILE", str(tmp_path / "token"))
    with pytest.raises(ManagerError, match=r"no token file .* Copy .* from its machine, and set VF_TOKEN_FILE"):
        Client.find()
    (tmp_path / "token").write_text("x" * 32)
    with pytest.raises(ManagerError, match="no manager answers"):
        Client.find().get("/api/jobs")


@pytest.mark.parametrize("address", ["junk", "127.0.0.1:8642", "http://", "ftp://127.0.0.1:8642"])
def test_what_is_no_address_of_a_manager_is_named(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VF_CLUSTER", address)
    with pytest.raises(ManagerError, match="is not the address of a manager: expected http://HOST:PORT"):
        Client.find()
