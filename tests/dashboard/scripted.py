"""A server that says what a test tells it to: the page's API without a manager."""

from __future__ import annotations

import asyncio
import copy
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import FileResponse, StreamingResponse

from virtualflow.dashboard.page import STATIC

Json = dict[str, Any]


def page_files() -> dict[str, Path]:
    """Where each file of the page belongs below the page's own address: ``""`` is the page itself."""
    files = (path for path in sorted(STATIC.rglob("*")) if path.is_file() and path.name != "index.html")
    return {"": STATIC / "index.html", **{f"static/{path.relative_to(STATIC)}": path for path in files}}


def a_job(name: str, state: str = "RUNNING", devices: tuple[str, ...] = (), nodes: int = 8, **changes: Any) -> Json:
    """A job as the API shows it; virtual nodes in contiguous blocks."""
    count = max(1, len(devices))
    mapping = {d: [v for v in range(nodes) if v * count // nodes == place] for place, d in enumerate(devices)}
    return {
        "id": name, "name": name, "priority": 1, "state": state, "devices": list(devices), "demand": 4,
        "min": 1, "cap": None, "virtual_nodes": nodes, "mapping": mapping, "step": 0, "steps": 1000,
        "loss": None, "examples_per_second": None, "queued_seconds": 0.0, "run_seconds": 0.0, "eta_seconds": None,
        "resizes": 0, "failures": 0, "reason": "", "submitted": time.time(), "started": None, "ended": None, **changes,
    }  # fmt: skip


def a_state(jobs: list[Json], devices: list[Json], mode: str = "cluster") -> Json:
    owner = {device: job["id"] for job in jobs for device in job["devices"]}
    now = time.time()
    cluster = {
        "name": "lab",
        "policy": "wfs",
        "backend": "local",
        "started": now - 3000,
        "now": now,
        "version": "0.1.0",
    }
    named = [{**device, "job": owner.get(device["name"])} for device in devices]
    return {"mode": mode, "cluster": cluster, "jobs": jobs, "devices": named}


def some_devices(**counts: int) -> list[Json]:
    """A machine for each type."""
    return [
        {"name": f"{kind}:{number}", "type": kind, "machine": machine, "job": None, "lost": False}
        for machine, (kind, count) in enumerate(counts.items())
        for number in range(count)
    ]


def a_segment(job: str, devices: tuple[str, ...], begin: float, end: float | None = None) -> Json:
    kinds = [device.split(":")[0] for device in devices]
    types = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
    return {"job": job, "name": job, "devices": list(devices), "types": types, "begin": begin, "end": end}


class Scripted:
    """What the server shows now, and what it was told."""

    def __init__(self) -> None:
        self.state = a_state([], some_devices(cpu=4))
        self.segments: list[Json] = []
        self.series: dict[str, Json] = {}
        self.details: dict[str, Json] = {}
        self.logs: dict[str, str] = {}
        self.posted: list[tuple[str, Json]] = []
        self.refuse: str | None = None  # what the server says to every request to do something
        self.broken = False  # no stream
        self.caller: Json = {"name": "manager", "role": "administer", "owner": ""}
        self.version = 0
        self.address = ""

    def push(self, jobs: list[Json], segments: list[Json] | None = None, mode: str = "cluster") -> None:
        devices = [{**device, "job": None} for device in self.state["devices"]]
        self.segments = self.segments if segments is None else segments
        self.state = a_state(copy.deepcopy(jobs), devices, mode)
        self.version += 1

    async def stream(self) -> AsyncIterator[str]:
        sent = -1
        while not self.broken:
            if sent != self.version:
                sent = self.version
                yield f"event: state\ndata: {json.dumps(self.state)}\n\n"
            await asyncio.sleep(0.03)

    def app(self) -> FastAPI:
        app = FastAPI()
        files = page_files()
        empty = {"time": [], "step": [], "loss": [], "examples_per_second": [], "devices": []}

        @app.middleware("http")
        async def strict(request: Request, call_next: Any) -> Response:
            response: Response = await call_next(request)
            response.headers["Content-Security-Policy"] = "default-src 'self'"
            return response

        @app.get("/api/state")
        def state() -> Json:
            if self.broken:
                raise HTTPException(503, "away")
            return self.state

        @app.get("/api/stream")
        def stream() -> Response:
            if self.broken:
                raise HTTPException(503, "away")
            return StreamingResponse(self.stream(), media_type="text/event-stream")

        @app.get("/api/caller")
        def caller() -> Json:
            return self.caller

        @app.get("/api/history")
        def history() -> Json:
            return {"segments": self.segments}

        @app.get("/api/jobs/{job}/series")
        def series(job: str) -> Json:
            return self.series.get(job, empty)

        @app.get("/api/jobs/{job}/logs")
        def logs(job: str, offset: int = 0) -> Json:
            text = self.logs.get(job, "")
            return {"text": text[offset:], "offset": len(text)}

        @app.get("/api/jobs/{job}")
        def detail(job: str) -> Json:
            shown = next(each for each in self.state["jobs"] if each["id"] == job)
            described: Json = {"script": "train.py", "description": {"arguments": []}, "folder": "runs"}
            return {**shown, **described, "events": [], "failure": None, **self.details.get(job, {})}

        @app.post("/api/{verb:path}")
        async def post(verb: str, request: Request, response: Response) -> Json:
            self.posted.append((verb, await request.json()))
            if self.refuse is not None:
                raise HTTPException(409, self.refuse)
            response.status_code = 201 if verb == "jobs" else 200
            return {"id": "new"}

        @app.get("/{name:path}")
        def file(name: str) -> Response:
            if name not in files:
                raise HTTPException(404, f"no file {name}")
            return FileResponse(files[name])

        return app


@contextmanager
def served(scripted: Scripted) -> Iterator[Scripted]:
    """The server in a thread of this process."""
    config = uvicorn.Config(scripted.app(), host="127.0.0.1", port=0, log_level="critical", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    scripted.address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    try:
        yield scripted
    finally:
        scripted.broken = True
        server.should_exit = True
        thread.join()
