"""A browser's session: what half of it is worth, what other pages can do with it, and when it ends."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.served import Site, a_site
from virtualflow.manager.api import sessions
from virtualflow.manager.api.guard import _cookie, _cookies
from virtualflow.manager.api.sessions import Session, Sessions
from virtualflow.manager.token_book import TokenBook
from virtualflow.testing import FakeClock

PAGE = ("/", "/docs", "/openapi.json", "/static/app.js")
OWN = TokenBook(b"a token").own
OF_JOBS = ("/api/state", "/api/jobs", "/api/history", "/api/devices", "/metrics", "/nothing")


@pytest.fixture
def site(vf_home: Path) -> Iterator[Site]:
    with a_site(vf_home) as site:
        yield site


def test_a_link_works_once_and_its_cookie_can_not_be_read_by_scripts(site: Site) -> None:
    link = site.link()
    status, headers, _ = site.ask("GET", link)
    assert status == 303
    assert "HttpOnly; SameSite=Strict; Path=/; Max-Age=43200" in headers["set-cookie"]
    assert headers["set-cookie"].startswith(f"vf_session_{site.port}=")  # two servers of a host have two
    assert site.ask("GET", link)[0] == 401


def test_both_halves_of_a_session_open_everything(site: Site) -> None:
    signed = site.sign_in()
    for path in (*PAGE, *OF_JOBS[:-1]):
        status, headers, _ = site.ask("GET", path, headers={**signed.cookie, **signed.key})
        assert status == 200, path
        assert "default-src 'self'" in headers["content-security-policy"]
        assert headers["cross-origin-resource-policy"] == "same-origin"
    job = site.a_job()
    origin = {"Origin": f"http://{site.host}"}
    assert site.ask("POST", f"/api/jobs/{job}/cancel", headers={**signed.cookie, **signed.key, **origin})[0] == 200
    assert site.state_of(job) == "CANCELLED"


def test_the_cookie_alone_opens_the_page_and_tells_of_no_job(site: Site) -> None:
    signed = site.sign_in()
    job = site.a_job()
    for path in PAGE:
        status, _, body = site.ask("GET", path, headers=signed.cookie)
        assert (status, job.encode() in body) == (200, False), path
    for path in OF_JOBS:
        status, _, body = site.ask("GET", path, headers=signed.cookie)
        assert (status, "not signed in" in body.decode()) == (403, True), path
    # Whoever listens on another port of the host has seen the cookie, and can say anything else.
    forged = {
        **signed.cookie,
        "Origin": f"http://{site.host}",
        "X-VF-Session": "guessed",
        "Sec-Fetch-Site": "same-origin",
    }
    assert site.ask("POST", f"/api/jobs/{job}/cancel", headers=forged)[0] == 403
    assert site.ask("POST", "/", headers=signed.cookie)[0] == 403
    assert site.state_of(job) == "QUEUED"


def test_the_key_alone_opens_nothing(site: Site) -> None:
    signed, other = site.sign_in(), site.sign_in()
    for path in (*PAGE, *OF_JOBS):
        assert site.ask("GET", path, headers=signed.key)[0] == 401
        if path in OF_JOBS:
            assert site.ask("GET", path, headers={**other.cookie, **signed.key})[0] == 403  # halves of two sessions


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://localhost:PORT"},
        {"Origin": "https://127.0.0.1:PORT"},
        {"Origin": "null"},
        {"Host": "evil.example:PORT"},  # a name that was bound to this address
        {"Host": "evil.example:PORT", "Origin": "http://evil.example:PORT"},
        {"Host": "localhost:PORT"},
    ],
)
def test_what_another_page_asks_for_is_refused_even_with_both(site: Site, headers: dict[str, str]) -> None:
    signed, job = site.sign_in(), site.a_job()
    sent = {name: value.replace("PORT", str(site.port)) for name, value in headers.items()}
    for verb, path in (("POST", f"/api/jobs/{job}/cancel"), ("GET", "/api/state"), ("GET", "/")):
        status, _, body = site.ask(verb, path, headers={**signed.cookie, **signed.key, **sent})
        assert (status, "another page" in body.decode()) == (403, True), path
    assert site.state_of(job) == "QUEUED"


def test_under_whichever_name_a_link_was_opened_its_session_is_good_there(site: Site) -> None:
    """Through a tunnel the port is another one too."""
    name = {"Host": "localhost:8080"}
    _, headers, _ = site.ask("GET", site.link(), headers=name)
    cookie = headers["set-cookie"].partition(";")[0]
    both = {**name, "Cookie": cookie, "X-VF-Session": headers["location"].partition("=")[2]}
    assert site.ask("GET", "/api/state", headers=both)[0] == 200
    assert site.ask("GET", "/api/state", headers={**both, "Host": site.host})[0] == 403


@pytest.mark.parametrize(
    "noise", ["{}", 'x="', "a b c", "=", ";;", "vf_session_PORT=another", "x=\xff", "y=" + "z" * 4000]
)
def test_cookies_of_other_servers_are_not_in_the_way(site: Site, noise: str) -> None:
    signed = site.sign_in()
    for cookie in (f"{noise}; {signed.cookie['Cookie']}", f"{signed.cookie['Cookie']}; {noise}"):
        sent = {**signed.key, "Cookie": cookie.replace("PORT", str(site.port))}
        assert site.ask("GET", "/api/state", headers=sent)[0] == 200


def test_a_session_dies_with_its_server(vf_home: Path) -> None:
    with a_site(vf_home) as first:
        signed = first.sign_in()
        assert first.ask("GET", "/api/state", headers={**signed.cookie, **signed.key})[0] == 200
    with a_site(vf_home) as second:
        name = f"vf_session_{second.port}={signed.cookie['Cookie'].partition('=')[2]}"
        assert second.ask("GET", "/", headers={"Cookie": name, **signed.key})[0] == 401


def test_sessions_and_links_end_after_some_hours() -> None:
    clock = FakeClock()
    there = Sessions(clock)
    late, code = there.one_time_code(OWN), there.one_time_code(OWN)
    session = there.open(code, "h")
    assert session is not None
    assert there.open(code, "h") is None
    clock.now = sessions.CODE_SECONDS + 1
    assert there.open(late, "h") is None
    clock.now = sessions.SESSION_SECONDS - 1
    assert there.find([b"x", session.cookie.encode()]) is session
    assert there.seconds_left(session) == 1
    clock.now += 1
    assert there.find([session.cookie.encode()]) is None
    assert there.seconds_left(session) == 0


def test_there_are_never_many_sessions_or_links() -> None:
    there = Sessions(FakeClock())
    codes = [there.one_time_code(OWN) for _ in range(sessions.MOST + 1)]
    opened = [there.open(code, "h") for code in codes]
    assert opened[0] is None
    first, *_, last = [each for each in (*opened, *(there.open(there.one_time_code(OWN), "h") for _ in "ab")) if each]
    assert there.find([first.cookie.encode()]) is None
    assert there.find([last.cookie.encode()]) is last


def test_a_stream_ends_with_its_session(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "SESSION_SECONDS", 1.0)
    signed = site.sign_in()
    status, _, body = site.ask("GET", "/api/stream", headers={**signed.cookie, **signed.key})  # and so to its end
    assert (status in (200, 401), body[:12] in (b"event: state", b"")) == (True, True)
    assert site.ask("GET", "/", headers=signed.cookie)[0] == 401


def test_where_there_is_tls_the_cookie_is_the_hosts_own() -> None:
    scope = {"scheme": "https", "server": ("h", 4711), "headers": []}
    cookie = _cookie(scope, Session("c", "k", "h:4711", 0.0, OWN)).decode()
    assert cookie.startswith("__Host-vf_session_4711=c; ")
    assert {"Secure", "HttpOnly", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    sent = [(b"cookie", b"vf_session_4711=a; __Host-vf_session_4711=c"), (b"cookie", b"__Host-vf_session_4711=d")]
    assert list(_cookies({**scope, "headers": sent})) == [b"c", b"d"]


class Elsewhere:
    """A server on another port of the same host, which shows a page and keeps what it is sent."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.page = ""
        self.seen: list[str] = []  # cookies


@contextmanager
def elsewhere() -> Iterator[Elsewhere]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            there.seen.append(self.headers.get("Cookie", ""))
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(there.page.encode())

        def log_message(self, format: str, *arguments: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    there = Elsewhere(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield there
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


FORM = """<form method=post action=http://SITE/api/jobs/JOB/cancel ENC><input name='{"x": "' value='"}'></form>
          <script>document.forms[0].submit()</script>"""
FETCH = """<script>Promise.allSettled(["no-cors", "cors"].map((mode) => fetch("http://SITE/api/jobs/JOB/cancel",
    { method: "POST", mode, credentials: "include", headers: HEADERS }))).then(() => { document.title = "done"; })
    </script>"""
ATTACKS = {
    "a form": FORM.replace("ENC", ""),
    "a form with text": FORM.replace("ENC", "enctype=text/plain"),
    "a script": FETCH.replace("HEADERS", "{}"),
    "a script with headers": FETCH.replace("HEADERS", "{'X-VF-Session': 'x', 'Content-Type': 'application/json'}"),
    "a frame": "<iframe src=http://SITE/></iframe><script>onload = () => { document.title = 'done'; }</script>",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_page_of_another_port_can_do_anything_in_a_browser_that_is_signed_in(
    browser: Any, site: Site, attack: str
) -> None:
    page = browser.new_page()
    page.set_default_timeout(60_000)
    with elsewhere() as there:
        job = site.a_job()
        page.goto(f"http://{site.host}{site.link()}")
        page.get_by_text(job).first.wait_for()
        assert "session" not in page.url
        there.page = ATTACKS[attack].replace("SITE", site.host).replace("JOB", job)
        page.goto(f"http://127.0.0.1:{there.port}/")
        if "form" in attack:
            page.get_by_text("another page").wait_for()  # where the form has led
        else:
            page.wait_for_function("() => document.title === 'done'")
        stolen = next(cookie for cookie in there.seen if cookie)
        assert f"vf_session_{site.port}=" in stolen  # that much a browser gives away
        assert site.state_of(job) == "QUEUED"
        assert site.ask("POST", f"/api/jobs/{job}/cancel", headers={"Cookie": stolen})[0] == 403
        if attack == "a frame":
            assert page.frames[1].get_by_text(job).count() == 0
        # And its owner still can.
        page.goto(f"http://{site.host}/")
        page.get_by_role("button", name="Cancel…").first.click()
        page.get_by_role("button", name="Cancel the job").click()
        page.get_by_text("CANCELLED").first.wait_for(state="attached")
        assert site.state_of(job) == "CANCELLED"
    page.close()


def test_a_page_whose_session_has_ended_says_how_to_sign_in_again(browser: Any, site: Site) -> None:
    page = browser.new_page()
    page.set_default_timeout(60_000)
    page.goto(f"http://{site.host}{site.link()}")
    page.get_by_text("live").first.wait_for()
    page.evaluate("localStorage.setItem('vf-session', 'stale')")
    assert json.loads(site.ask("GET", "/api/state", headers=site.sign_in().cookie)[2]) == {
        "detail": "not signed in: open the address that `vf dashboard` prints"
    }
    page.reload()
    page.get_by_text("open the address that `vf dashboard` prints").first.wait_for()
    page.goto(f"http://{site.host}{site.link()}")
    page.get_by_text("live").first.wait_for()
    page.close()
