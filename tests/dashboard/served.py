"""A real server over a manager that starts nothing, and how to sign in to it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from virtualflow.cluster.policies import registry
from virtualflow.core.devices import parse_pools
from virtualflow.core.job_description import JobDescription
from virtualflow.core.job_terms import JobTerms
from virtualflow.job.listener import listen
from virtualflow.manager.api.connections import Limits
from virtualflow.manager.api.server import Server
from virtualflow.manager.api.serving import serving
from virtualflow.manager.api.views import ClusterSource
from virtualflow.manager.description import Cluster
from virtualflow.manager.manager import Manager
from virtualflow.manager.records import Records
from virtualflow.manager.submission import Submission
from virtualflow.manager.token_book import TOKENS, TokenBook

TOKEN = "correct horse battery staple"
Answer = tuple[int, dict[str, str], bytes]


@dataclass(frozen=True)
class Signed:
    """A browser's session, as whoever has both halves of it sees it."""

    cookie: dict[str, str]
    key: dict[str, str]


@dataclass(frozen=True)
class Site:
    """The server, and the manager behind it."""

    port: int
    server: Server
    manager: Manager
    home: Path

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def ask(self, verb: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        connection = http.client.HTTPConnection(self.host, timeout=60)
        connection.request(verb, path, None if body is None else json.dumps(body), headers or {})
        answer = connection.getresponse()
        answered = answer.status, dict(answer.getheaders()), answer.read()
        connection.close()
        return answered

    def asked_by(self, token: str, verb: str, path: str, body: Any = None) -> tuple[int, Any]:
        """What whoever has *token* is told."""
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        status, _, text = self.ask(verb, path, body, headers)
        return status, json.loads(text)

    def trusted(self, verb: str, path: str, body: Any = None, token: str = TOKEN) -> Any:
        status, answer = self.asked_by(token, verb, path, body)
        assert status < 300, answer
        return answer

    def link(self, token: str = TOKEN) -> str:
        return f"/login?code={self.trusted('POST', '/api/login', token=token)['code']}"

    def sign_in(self, token: str = TOKEN) -> Signed:
        status, headers, _ = self.ask("GET", self.link(token))
        assert status == 303
        where, _, key = headers["location"].partition("#session=")
        assert where == "/"
        return Signed({"Cookie": headers["set-cookie"].partition(";")[0]}, {"X-VF-Session": key})

    def a_job(self, owner: str = "") -> str:
        """One that waits for ever: nobody drives this manager."""
        return self.manager.submit(Submission(JobDescription("job.py"), {"job.py": ""}, terms=JobTerms(owner=owner)))

    def state_of(self, job: str) -> str:
        return self.manager.records[job].state


@contextmanager
def a_site(home: Path, limits: Limits | None = None) -> Iterator[Site]:
    home.mkdir(parents=True, exist_ok=True)
    records = Records(home / "jobs.sqlite")
    with listen("127.0.0.1", 0) as listening:
        manager = Manager(Cluster(tuple(parse_pools("4")), {}), registry.make("wfs"), records)
        book = TokenBook(TOKEN.encode(), home / TOKENS)
        with serving(ClusterSource(manager, book), book, listening, limits=limits, folder=home) as server:
            yield Site(listening.getsockname()[1], server, manager, home)
    records.close()
