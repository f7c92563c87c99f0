"""Several people with tokens of their own, and a manager that is encrypted: the verbs, with a real service."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_jobs import run_verb
from tests.manager.managed import Service
from tests.system.test_identity import a_certificate
from virtualflow.errors import LaunchError
from virtualflow.manager.client import Client
from virtualflow.system import identity

pytestmark = pytest.mark.timeout(400)  # a busy machine decides nothing


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A manager with a certificate of its owner's, on loopback."""
    folder = tmp_path_factory.mktemp("users")
    certificate, key = a_certificate(folder)
    options = ("--listen", "127.0.0.1:0", "--tls-cert", str(certificate), "--tls-key", str(key))
    service = Service(folder / "home", "--devices", "2", *options)
    try:
        service.up()
        yield service
    finally:
        service.close()


def test_people_with_tokens_do_what_their_roles_allow_and_the_log_tells_who(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VF_HOME", str(service.home))
    address = service.client.address
    assert address.startswith("https://127.0.0.1:")
    for name, role in (("ann", "submit"), ("bob", "submit"), ("wall", "look")):
        code, said = run_verb("cluster", "token", "add", name, "--role", role)
        assert (code, f"VF_CLUSTER={address} VF_TOKEN_FILE={name}.token" in said) == (0, True), said
        assert (tmp_path / f"{name}.token").stat().st_mode & 0o777 == 0o600
    assert "there is a file ann.token already" in run_verb("cluster", "token", "add", "ann", "--role", "look")[1]

    code, said = run_verb("cluster", "token", "add", "eve", "--role", "look", "-o", "no/such/folder")
    assert (code, "no/such/folder: the folder" in said) == (2, True)  # and no token was made, as the list shows below

    script = tmp_path / "train.py"
    script.write_text("")
    monkeypatch.setenv("VF_HOME", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("VF_CLUSTER", address)

    def at(name: str, *verb: str) -> tuple[int, str]:
        monkeypatch.setenv("VF_TOKEN_FILE", f"{name}.token")
        return run_verb(*verb)

    service.client.post("/api/devices/0/drain")
    service.client.post("/api/devices/1/drain")  # so that all jobs wait
    job = at("ann", "submit", "--name", "hers", str(script))[1].split()[1]
    assert [each["owner"] for each in json.loads(at("ann", "queue", "--mine", "--json")[1])] == ["ann"]
    assert json.loads(at("bob", "queue", "--mine", "--json")[1]) == []
    assert "leave out --owner bob" in at("ann", "submit", "--owner", "bob", str(script))[1]
    code, said = at("bob", "cancel", "hers")
    assert (code, f"job {job} is ann's: your token, bob, changes bob's jobs only" in said) == (2, True)
    code, said = at("wall", "submit", str(script))
    assert (code, "this needs a token with the role submit, and yours, wall, has the role look" in said) == (2, True)
    assert "this needs a token with the role administer" in at("ann", "devices", "--return", "0")[1]
    assert "this needs a token with the role administer" in at("wall", "cluster", "audit")[1]
    assert at("ann", "cancel", "hers")[0] == 0

    monkeypatch.setenv("VF_TOKEN_FILE", str(service.home / "cluster" / "token"))
    assert run_verb("cluster", "token", "remove", "wall")[0] == 0
    assert "another token than this one" in at("wall", "queue")[1]
    monkeypatch.setenv("VF_TOKEN_FILE", str(service.home / "cluster" / "token"))
    listed = json.loads(run_verb("cluster", "token", "list", "--json")[1])
    assert [(each["name"], each["role"]) for each in listed] == [("ann", "submit"), ("bob", "submit")]

    def told() -> list[tuple[str, str, str]]:
        lines = run_verb("cluster", "audit", "--json", "--since", "1h")[1].splitlines()
        return [(each["token"], each["verb"], each["outcome"]) for each in map(json.loads, lines)]

    from_elsewhere = told()
    assert from_elsewhere[-7:] == [
        ("ann", "submit", "done"),
        ("ann", "submit", "refused"),
        ("bob", "cancel", "refused"),
        ("wall", "submit", "refused"),
        ("ann", "return", "refused"),
        ("ann", "cancel", "done"),
        ("manager", "remove token", "done"),
    ]
    monkeypatch.delenv("VF_CLUSTER")
    monkeypatch.delenv("VF_TOKEN_FILE")
    monkeypatch.setenv("VF_HOME", str(service.home))
    assert told() == from_elsewhere  # read from its file
    with (service.home / "cluster" / "audit.jsonl").open("a") as log:
        log.write("damage\n")
    code, said = run_verb("cluster", "audit")
    assert (code, "1 line of the log can't be read" in said, "wall" in said) == (0, True, True)


def test_clients_know_an_encrypted_manager_by_its_certificate_alone(service: Service, tmp_path: Path) -> None:
    client = service.client
    assert client.get("/api/caller")["role"] == "administer"
    for wrong in (identity.identity(tmp_path).fingerprint, ""):
        with pytest.raises(LaunchError, match="is not the one of the token file"):
            Client(client.address, client.token, wrong).get("/api/caller")
    # A browser that trusts the certificate gets the page, and old versions of TLS are not spoken.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host = client.address.removeprefix("https://")
    browser = http.client.HTTPSConnection(host, context=context, timeout=60)
    browser.request("GET", f"/login?code={client.post('/api/login')['code']}")
    answer = browser.getresponse()
    assert (answer.status, answer.headers["set-cookie"].startswith("__Host-vf_session_")) == (303, True)
    browser.close()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError, match=r"(?i)protocol"):
        http.client.HTTPSConnection(host, context=context, timeout=60).connect()
