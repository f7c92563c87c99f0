"""Tokens with roles: what each of them may do, at every endpoint there is, and when that ends."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.served import TOKEN, Site, a_site
from virtualflow.errors import ManagerError
from virtualflow.manager.audit_log import AUDIT_LOG, AuditReader
from virtualflow.manager.token_book import TOKENS, Role, TokenBook

JOB = {"script": "job.py", "modules": {"job.py": ""}}
CHANGES_OF_A_JOB = ("priority", "resize", "pause", "resume", "cancel")
BODIES: dict[str, Any] = {  # that would be followed
    "/api/jobs": JOB,
    "/api/jobs/{job_id}/priority": {"priority": 7.0},
    "/api/jobs/{job_id}/resize": {"devices": 2},
    "/api/devices/{name}/maintenance": {"begin": 1e10, "end": 1.1e10},
    "/api/tokens": {"name": "another", "role": "administer"},
    "/api/cluster/down": {"keep_jobs": True},
}


@pytest.fixture
def site(vf_home: Path) -> Iterator[Site]:
    with a_site(vf_home) as site:
        yield site


def a_token(site: Site, role: str, name: str = "eve", owner: str = "") -> str:
    return str(site.trusted("POST", "/api/tokens", {"name": name, "role": role, "owner": owner})["token"])


def requests_of(site: Site) -> list[tuple[str, str]]:
    """All that the server says it can be asked: verb and route."""
    paths = site.trusted("GET", "/openapi.json")["paths"]
    return [(verb.upper(), path) for path, verbs in paths.items() for verb in verbs]


def filled(path: str, job: str) -> str:
    return path.replace("{job_id}", job).replace("/devices/{name}", "/devices/0").replace("{name}", "kept")


def seen(site: Site) -> dict[str, Any]:
    """All of the manager's that a request may change."""
    state = site.trusted("GET", "/api/state")
    kept = ("id", "state", "priority", "cap", "owner")
    return {
        "jobs": [{name: job[name] for name in kept} for job in state["jobs"]],
        "devices": state["devices"],
        "tokens": site.trusted("GET", "/api/tokens"),
    }


def test_a_looker_sees_all_and_changes_nothing_by_any_request_there_is(site: Site) -> None:
    look, job = a_token(site, "look"), site.a_job("eve")
    a_token(site, "submit", "kept")
    before = seen(site)
    refused = []
    for verb, path in requests_of(site):
        if path == "/api/stream":
            continue
        if path == "/metrics":
            assert site.ask(verb, path, headers={"Authorization": f"Bearer {look}"})[0] == 200
            continue
        status, answer = site.asked_by(look, verb, filled(path, job), BODIES.get(path))
        if status == 403:
            refused.append((verb, path))
            role = "submit" if path.startswith("/api/jobs") else "administer"
            assert f"this needs a token with the role {role}, and yours, eve, has the role look" in answer["detail"]
        else:
            assert (verb, path) in [("POST", "/api/login")] or verb == "GET", (verb, path, answer)
            assert status in (200, 404, 409), (path, answer)  # no sweep of that name
    changes = [(verb, path) for verb, path in requests_of(site) if verb != "GET" and path != "/api/login"]
    assert sorted(refused) == sorted([*changes, ("GET", "/api/audit"), ("GET", "/api/tokens")])
    assert len(changes) >= 13
    assert seen(site) == before


def test_a_submitter_changes_its_own_users_jobs_and_nothing_else(site: Site) -> None:
    submit = a_token(site, "submit", "eves", "eve")
    theirs = site.a_job("bob")
    nobodys = site.a_job()
    before = seen(site)
    for verb, path in requests_of(site):
        if verb == "GET" or path in ("/api/login", "/api/jobs"):
            continue
        for job in (theirs, nobodys):
            status, answer = site.asked_by(submit, verb, filled(path, job), BODIES.get(path))
            assert status == 403, (path, answer)
            if path.startswith("/api/jobs/"):
                whose = "bob's" if job == theirs else "nobody's"
                assert answer["detail"] == f"job {job} is {whose}: your token, eves, changes eve's jobs only"
    assert seen(site) == before
    own = site.trusted("POST", "/api/jobs", JOB, submit)["id"]
    assert site.trusted("GET", f"/api/jobs/{own}", token=submit)["owner"] == "eve"
    for verb in CHANGES_OF_A_JOB:
        site.trusted("POST", f"/api/jobs/{own}/{verb}", BODIES.get(f"/api/jobs/{{job_id}}/{verb}"), submit)
    assert site.state_of(own) == "CANCELLED"


def test_a_submitter_can_not_submit_as_somebody_else(site: Site) -> None:
    submit = a_token(site, "submit", "eve")
    status, answer = site.asked_by(submit, "POST", "/api/jobs", {**JOB, "owner": "bob"})
    assert (status, answer["detail"]) == (
        403,
        "your token, eve, submits jobs of eve, not of bob: leave out --owner bob",
    )
    assert site.trusted("POST", "/api/jobs", {**JOB, "owner": "eve"}, submit)
    assert site.trusted("GET", "/api/caller", token=submit) == {"name": "eve", "role": "submit", "owner": "eve"}


def test_an_administrator_may_all_that_the_managers_own_token_may(site: Site) -> None:
    administer = a_token(site, "administer", "ada")
    job = site.trusted("POST", "/api/jobs", {**JOB, "owner": "bob"}, administer)["id"]
    site.trusted("POST", f"/api/jobs/{job}/cancel", token=administer)
    site.trusted("POST", "/api/devices/0/drain", token=administer)
    site.trusted("POST", "/api/tokens", {"name": "more", "role": "look"}, administer)
    site.trusted("POST", "/api/tokens/ada/remove", token=administer)
    assert site.ask("GET", "/api/state", headers={"Authorization": f"Bearer {administer}"})[0] == 401


@pytest.mark.parametrize(
    "path",
    [
        "//api/jobs/JOB/cancel", "/api//jobs/JOB/cancel", "/api/jobs/JOB/cancel/", "/api/./jobs/JOB/cancel",
        "/static/../api/jobs/JOB/cancel", "/static/%2e%2e/api/jobs/JOB/cancel", "/api/jobs/JOB%2Fcancel",
        "/api/jobs/JOB/cancel?role=administer", "/api/jobs/JOB/cancel;x", "/API/jobs/JOB/cancel",
        "/api/jobs/%4aOB/cancel", "/api/login/../jobs/JOB/cancel", "/api/jobs/x/../JOB/cancel", "/login?code=x",
        "/api/devices/x/y/../../0/drain", "/api/devices/../tokens/drain", "/api/devices/0%2Fdrain",
    ],
)  # fmt: skip
def test_no_other_way_of_writing_a_path_or_a_verb_lets_a_looker_change_anything(
    tricked: tuple[Site, str, str], path: str
) -> None:
    site, look, job = tricked
    headers = {
        "Authorization": f"Bearer {look}", "X-HTTP-Method-Override": "POST", "X-Original-URL": f"/api/jobs/{job}/pause",
        "X-Forwarded-For": "127.0.0.1", "Content-Type": "application/json", "X-Forwarded-Prefix": "/api",
    }  # fmt: skip
    for verb in ("POST", "PUT", "DELETE", "PATCH", "GET", "HEAD", "OPTIONS", "TRACE", "post", "GETX"):
        status, _, _ = site.ask(verb, path.replace("JOB", job), None, headers)
        assert status not in (201, 202), path
    assert site.state_of(job) == "QUEUED"
    assert not site.manager.scheduler.placement.lost


@pytest.fixture(scope="module")
def tricked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, str, str]]:
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VF_HOME", str(home))
        with a_site(home) as site:
            yield site, a_token(site, "look"), site.a_job("eve")


def test_an_upgraded_connection_and_a_second_request_on_it_are_what_their_token_is(site: Site) -> None:
    look, job = a_token(site, "look"), site.a_job("eve")
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13\r\n"
    first = f"GET /api/stream HTTP/1.1\r\nHost: {site.host}\r\nAuthorization: Bearer {TOKEN}x\r\n{upgrade}\r\n"
    second = f"POST /api/jobs/{job}/cancel HTTP/1.1\r\nHost: {site.host}\r\nContent-Length: 0\r\n"
    for head, token in (
        (first, ""),
        (f"GET /api/caller HTTP/1.1\r\nHost: {site.host}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n", ""),
        (f"GET /api/caller HTTP/1.1\r\nHost: {site.host}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n", look),
    ):
        with socket.create_connection(("127.0.0.1", site.port), timeout=60) as connection:
            shown = f"Authorization: Bearer {token}\r\n" if token else ""
            connection.sendall(f"{head}{second}{shown}Connection: close\r\n\r\n".encode())
            answers = b""
            while data := connection.recv(1 << 16):
                answers += data
        assert answers.count(b"HTTP/1.1 40") >= 1, answers
        assert site.state_of(job) == "QUEUED"


def test_two_tokens_in_one_request_are_not_the_better_one(site: Site) -> None:
    look, job = a_token(site, "look"), site.a_job("eve")
    for tokens in ((TOKEN, look), (look, TOKEN)):
        connection = http.client.HTTPConnection(site.host, timeout=60)
        connection.putrequest("POST", f"/api/jobs/{job}/cancel")
        for token in tokens:
            connection.putheader("Authorization", f"Bearer {token}")
        connection.endheaders()
        status = connection.getresponse().status
        connection.close()
        assert (status, site.state_of(job)) == (403, "QUEUED") or (tokens[-1], status) == (TOKEN, 200)
    both = f"Bearer {look}, Bearer {TOKEN}"
    assert site.ask("GET", "/api/state", headers={"Authorization": both})[0] == 401


def test_a_page_may_what_its_token_may_until_that_is_removed(site: Site) -> None:
    job = site.a_job("eve")
    look = a_token(site, "look")
    signed, link = site.sign_in(look), site.link(look)
    both = {**signed.cookie, **signed.key}
    assert json.loads(site.ask("GET", "/api/caller", headers=both)[2])["role"] == "look"
    status, _, body = site.ask("POST", f"/api/jobs/{job}/cancel", headers=both)
    assert (status, "has the role look" in body.decode()) == (403, True)
    # A page that a looker's page opens is a looker's, too.
    code = json.loads(site.ask("POST", "/api/login", headers=both)[2])["code"]
    _, headers, _ = site.ask("GET", f"/login?code={code}")
    second = {"Cookie": headers["set-cookie"].partition(";")[0], "X-VF-Session": headers["location"].partition("=")[2]}
    assert site.ask("POST", f"/api/jobs/{job}/cancel", headers=second)[0] == 403

    site.trusted("POST", "/api/tokens/eve/remove")
    for path in ("/", "/api/state", "/api/caller", "/static/app.js"):
        assert site.ask("GET", path, headers=both)[0] == 401
    assert site.ask("GET", link)[0] == 401  # which was made before
    # Another token of that name does not wake it up.
    a_token(site, "administer")
    assert site.ask("GET", "/api/state", headers=both)[0] == 401
    assert site.ask("GET", "/api/state", headers={"Authorization": f"Bearer {look}"})[0] == 401


@pytest.mark.parametrize("by", ["token", "page"])
def test_a_stream_tells_nothing_more_once_its_token_is_removed(site: Site, by: str) -> None:
    look = a_token(site, "look")
    signed = site.sign_in(look)
    headers = {"Authorization": f"Bearer {look}"} if by == "token" else {**signed.cookie, **signed.key}
    connection = http.client.HTTPConnection(site.host, timeout=60)
    connection.request("GET", "/api/stream", headers=headers)
    answer = connection.getresponse()
    assert answer.readline() == b"event: state\n"
    site.trusted("POST", "/api/tokens/eve/remove")
    job = site.a_job("bob")
    rest = answer.read()  # to its end
    connection.close()
    assert job.encode() not in rest


def test_tokens_are_kept_as_hashes_and_the_file_counts_at_once(site: Site) -> None:
    submit, file = a_token(site, "submit"), site.home / TOKENS
    assert file.stat().st_mode & 0o777 == 0o600
    assert submit not in file.read_text()
    kept = file.read_text()
    file.unlink()
    assert site.ask("GET", "/api/state", headers={"Authorization": f"Bearer {submit}"})[0] == 401
    file.write_text(kept.replace('"submit"', '"look"').replace('"owner": "eve"', '"owner": ""'))
    file.chmod(0o600)
    assert site.trusted("GET", "/api/caller", token=submit)["role"] == "look"


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        (lambda file: file.chmod(0o620), "others can read or change it"),
        (lambda file: file.chmod(0o604), "others can read or change it"),
        (lambda file: file.write_text("{"), "it is damaged"),
        (lambda file: file.write_bytes(b"\xff\xfe"), "it is damaged"),
        (lambda file: file.write_text(file.read_text().replace('"look"', '"all"')), "it is damaged"),
        (lambda file: file.write_text(file.read_text().replace('"eve"', '"manager"')), "have one name"),
        (lambda file: file.write_text(file.read_text().replace('"version": 1', '"version": 2')), "version 2"),
    ],
)
def test_a_file_that_can_not_be_trusted_lets_nobody_in_and_is_named(site: Site, harm: Any, problem: str) -> None:
    look, file = a_token(site, "look"), site.home / TOKENS
    harm(file)
    assert site.ask("GET", "/api/state", headers={"Authorization": f"Bearer {look}"})[0] == 401
    (trouble,) = site.trusted("GET", "/api/state")["cluster"]["troubles"]
    assert problem in trouble
    for verb, path, body in (
        ("GET", "/api/tokens", None),
        ("POST", "/api/tokens", {"name": "new", "role": "look"}),
        ("POST", "/api/tokens/eve/remove", None),
    ):
        status, answer = site.asked_by(TOKEN, verb, path, body)
        assert (status, problem in answer["detail"]) == (409, True)
    file.unlink()
    assert not site.trusted("GET", "/api/state")["cluster"]["troubles"]


def test_what_can_not_be_a_token_is_refused_with_the_reason(tmp_path: Path) -> None:
    book = TokenBook(b"own", tmp_path / TOKENS)
    book.add("eve", Role.LOOK)
    with pytest.raises(ManagerError, match="there is a token eve already"):
        book.add("eve", Role.SUBMIT)
    with pytest.raises(ManagerError, match="there is a token manager already"):
        book.add("manager", Role.LOOK)
    with pytest.raises(ManagerError, match="can't be the name of a token"):
        book.add("a/b", Role.LOOK)
    with pytest.raises(ManagerError, match="has an owner, whose jobs it submits; no other has one"):
        book.add("bob", Role.LOOK, "bob")
    with pytest.raises(ManagerError, match=r"there is no token 'bob'. The present ones: eve."):
        book.remove("bob")
    with pytest.raises(ManagerError, match="the manager's own"):
        book.remove("manager")
    assert [caller.name for caller in book.others()] == ["eve"]


def test_a_token_of_one_manager_is_nothing_to_another(site: Site, tmp_path: Path) -> None:
    look = a_token(site, "look")
    other = TokenBook(b"another", tmp_path / TOKENS)
    other.add("eve", Role.LOOK)
    assert other.caller(look.encode()) is None
    assert other.caller(TOKEN.encode()) is None


def test_every_change_and_every_refusal_is_in_the_audit_log(site: Site) -> None:
    submit, job = a_token(site, "submit"), site.a_job("bob")
    own = site.trusted("POST", "/api/jobs", {**JOB, "environment": {"SECRET": "not for the log"}}, submit)["id"]
    site.trusted("POST", f"/api/jobs/{own}/priority", {"priority": 3.5}, submit)
    site.asked_by(submit, "POST", f"/api/jobs/{job}/cancel")
    site.asked_by(submit, "POST", "/api/devices/0/drain")
    site.asked_by(TOKEN, "POST", "/api/jobs/nothing/pause")
    site.ask("POST", f"/api/jobs/{job}/cancel", headers={"Authorization": "Bearer guessed"})
    site.ask("POST", "/no/such/thing", headers={"Authorization": f"Bearer {TOKEN}"})
    signed = site.sign_in(submit)
    site.ask("POST", f"/api/jobs/{own}/cancel", headers=signed.cookie)  # as another page would
    site.ask("POST", f"/api/jobs/{own}/cancel", headers={**signed.cookie, **signed.key})
    entries = site.trusted("GET", "/api/audit")["entries"]
    told = [(each["token"], each["role"], each["verb"], each["job"] or each["on"], each["outcome"]) for each in entries]
    assert told == [
        ("manager", "administer", "add token", "", "done"),
        ("eve", "submit", "submit", own, "done"),
        ("eve", "submit", "priority", own, "done"),
        ("eve", "submit", "cancel", job, "refused"),
        ("eve", "submit", "drain", "0", "refused"),
        ("manager", "administer", "pause", "nothing", "refused"),
        ("", "", "unknown", "", "refused"),
        ("eve", "submit", "login", "", "done"),
        ("eve", "submit", "unknown", "", "refused"),
        ("eve", "submit", "cancel", own, "done"),
    ]
    assert entries[0]["asked"] == {"name": "eve", "role": "submit", "owner": ""}
    assert entries[2]["asked"] == {"priority": 3.5}
    assert entries[3]["why"] == f"job {job} is bob's: your token, eve, changes eve's jobs only"
    assert {each["remote"] for each in entries} == {"127.0.0.1"}
    log = site.home / AUDIT_LOG
    assert log.stat().st_mode & 0o777 == 0o600
    assert not any(secret in log.read_text() for secret in ("not for the log", submit, TOKEN))
    assert [each.verb for each in AuditReader(site.home).read(since=entries[-3]["time"])] == [
        "login",
        "unknown",
        "cancel",
    ]
