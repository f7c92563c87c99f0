"""The HTTP API of a cluster or of one job, and the page that uses it."""

from __future__ import annotations

import asyncio
import html
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, cast

from fastapi import Depends, FastAPI, Query, Request
from fastapi import Path as InPath
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST

from virtualflow import __version__
from virtualflow.core.job_description import JobDescription
from virtualflow.core.job_terms import JobTerms
from virtualflow.errors import RecordsError, UnknownJobError, VirtualFlowError
from virtualflow.events import STREAM
from virtualflow.job.output import LEAD_LOG
from virtualflow.manager.api import permissions, views
from virtualflow.manager.api.access_routes import add_access
from virtualflow.manager.api.audit_entries import JOB
from virtualflow.manager.api.guard import Guard
from virtualflow.manager.api.prometheus import PrometheusMetrics
from virtualflow.manager.api.request_bodies import MOST, Down, Maintenance, NewPriority, Resize, Resume, Submit
from virtualflow.manager.api.views import Source, View
from virtualflow.manager.audit_log import AuditLog
from virtualflow.manager.submission import Submission
from virtualflow.manager.token_book import TokenBook
from virtualflow.program.capture import take

STREAM_SECONDS = 0.5  # between two looks for something new
BEAT_SECONDS = 15.0  # so that a lost connection is noticed

Offset = Annotated[int, Query(ge=0, le=1 << 62)]
JobId = Annotated[str, InPath(max_length=64, pattern=r"^[\w-]+$")]


class Server:
    """The application for *source*; *on_down* is called by a request to end it, with whether jobs are kept."""

    def __init__(
        self, source: Source, book: TokenBook, on_down: Callable[[bool], None], folder: Path | None = None
    ) -> None:
        """*folder*: where the audit log is kept, if one is."""

        def check(request: Request) -> None:
            permissions.check(request, source)

        self.book = book
        api = FastAPI(
            title="VirtualFlow", version=__version__, docs_url=None, redoc_url=None, dependencies=[Depends(check)]
        )
        self.guard = Guard(api, book, AuditLog(folder))
        _add_errors(api)
        _add_jobs(api, source)
        _add_cluster(api, source, on_down)
        add_access(api, self.guard.sessions, book, folder)
        _add_page(api)

    def sign_in_path(self) -> str:
        """A link's, for the owner of this process: it works once."""
        return f"/login?code={self.guard.sessions.one_time_code(self.book.own)}"


def _add_errors(api: FastAPI) -> None:
    def refuse(request: Request, error: Exception) -> JSONResponse:
        status = 404 if isinstance(error, UnknownJobError) else 507 if isinstance(error, RecordsError) else 409
        return JSONResponse({"detail": str(error)}, status)

    def explain(request: Request, error: Exception) -> JSONResponse:
        # Without what was sent: not all of that can be written as JSON.
        wrong = error.errors() if isinstance(error, RequestValidationError) else []
        return JSONResponse(
            {"detail": [{name: problem[name] for name in ("type", "loc", "msg")} for problem in wrong]}, 422
        )

    api.add_exception_handler(VirtualFlowError, refuse)
    api.add_exception_handler(RequestValidationError, explain)


def _add_jobs(api: FastAPI, source: Source) -> None:
    refusals: dict[int | str, View] = {
        404: {"description": "There is no such job."},
        409: {"description": "It can't be done now; the answer says why."},
    }

    @api.get("/api/jobs")
    def jobs() -> list[View]:
        """All jobs: those that wait or run, and the last ones that have ended."""
        return cast(list[View], _plain(source.state()["jobs"]))

    @api.post("/api/jobs", status_code=201, responses={409: refusals[409], 507: {"description": "The disk is full."}})
    def submit(body: Submit, request: Request) -> dict[str, str]:
        """Hand in a job. Once this is answered, the job is never lost."""
        terms = body.said_of(JobTerms)
        terms = replace(terms, owner=permissions.owner_for(permissions.caller_of(request), terms.owner))
        directory = body.directory or str(Path(body.script).parent)
        modules = body.modules
        if modules is None:
            about: dict[str, Any] = {"arguments": body.arguments, "environment": body.environment}
            modules = take(Path(body.script), directory=directory, waits=True, **about).modules
        submission = Submission(
            description=body.said_of(JobDescription),
            modules=modules,
            directory=directory,
            environment=body.environment,
            interpreter=body.interpreter,
            terms=terms,
        )
        job_id = source.submit(submission)
        request.scope["state"][JOB] = job_id
        return {"id": job_id}

    @api.get("/api/sweeps/{sweep}", responses=refusals)
    def sweep(sweep: Annotated[str, InPath(max_length=80)]) -> list[View]:
        """All jobs of a sweep, also those that have ended long ago."""
        return cast(list[View], _plain(source.sweep(sweep)))

    @api.get("/api/jobs/{job_id}", responses=refusals)
    def job(job_id: JobId) -> View:
        return source.job(job_id)

    @api.get("/api/jobs/{job_id}/series", responses=refusals)
    def series(job_id: JobId) -> View:
        """Loss and speed over time."""
        return views.series(source.watch(job_id))

    @api.get("/api/jobs/{job_id}/logs", responses=refusals)
    def logs(job_id: JobId, offset: Offset = 0, tail: bool = True) -> View:
        """What the job's lead worker has printed, from *offset* on; with *tail*, no more than its end."""
        return views.text_from(source.folder(job_id).path / "logs" / LEAD_LOG, offset, tail=tail)

    @api.get("/api/jobs/{job_id}/events", responses=refusals)
    def events(job_id: JobId, offset: Offset = 0) -> View:
        """The job's event stream from *offset* on, as much as one answer may hold."""
        return views.text_from(source.folder(job_id).path / STREAM, offset, tail=False)

    @api.post("/api/jobs/{job_id}/priority", responses=refusals)
    def priority(job_id: JobId, body: NewPriority) -> View:
        source.set_priority(job_id, body.priority)
        return source.job(job_id)

    @api.post("/api/jobs/{job_id}/resize", responses=refusals)
    def resize(job_id: JobId, body: Resize) -> View:
        source.cap(job_id, None if body.devices == "auto" else int(body.devices))
        return source.job(job_id)

    @api.post("/api/jobs/{job_id}/pause", responses=refusals)
    def pause(job_id: JobId) -> View:
        """Stop with a checkpoint."""
        source.pause(job_id)
        return source.job(job_id)

    @api.post("/api/jobs/{job_id}/resume", responses=refusals)
    def resume(job_id: JobId, body: Resume | None = None) -> View:
        """Go on."""
        source.resume(job_id, body.from_checkpoint if body is not None else None)
        return source.job(job_id)

    @api.post("/api/jobs/{job_id}/cancel", responses=refusals)
    def cancel(job_id: JobId) -> View:
        """End for good."""
        source.cancel(job_id)
        return source.job(job_id)


def _plain(value: Any) -> JSONResponse:
    """The answer as it is: to look at every value of a thousand jobs for what is no JSON takes long."""
    return JSONResponse(value)


def _add_cluster(api: FastAPI, source: Source, on_down: Callable[[bool], None]) -> None:
    @api.get("/api/state")
    def state() -> View:
        """All there is to see at this moment."""
        return cast(View, _plain(source.state()))

    @api.get("/api/history")
    def history() -> View:
        """Which job had which devices, and when."""
        return source.history()

    @api.get("/api/recorded", responses={409: {"description": "This is the dashboard of one job."}})
    def recorded(seconds: Annotated[float, Query(gt=0, le=MOST)] = 7 * 86400.0) -> View:
        """The jobs of the last *seconds*: when they came, what they had, how fast they are. For `vf simulate`."""
        return cast(View, _plain(source.recorded(time.time() - seconds)))

    @api.get("/api/stream", response_class=StreamingResponse)
    async def stream() -> StreamingResponse:
        """Server-sent events: the state, whenever it has changed."""
        return StreamingResponse(_events(source), media_type="text/event-stream")

    @api.get("/api/devices")
    def devices() -> list[View]:
        return list(source.state()["devices"])

    @api.post("/api/devices/{name:path}/drain", responses={409: {"description": "There is no such device."}})
    def drain(name: str) -> list[View]:
        """Take a device out: jobs on it go on with the others they have."""
        source.lose(name)
        return devices()

    @api.post(
        "/api/devices/{name:path}/maintenance", responses={409: {"description": "It can't be; the answer says why."}}
    )
    def maintenance(name: str, body: Maintenance) -> list[View]:
        """Take a device out for a time to come: it is put back after that, or by /return."""
        source.plan_maintenance(name, body.begin, body.end)
        return devices()

    @api.post(
        "/api/devices/{name:path}/return", name="return", responses={409: {"description": "There is no such device."}}
    )
    def give_back(name: str) -> list[View]:
        source.give_back(name)
        return devices()

    @api.get("/api/orphans")
    def orphans() -> list[View]:
        """Folders of jobs that the manager has no record of, and that do not run."""
        return source.orphans()

    @api.post("/api/orphans/{job_id}/adopt", responses={404: {"description": "There is no such orphan."}})
    def adopt(job_id: JobId) -> View:
        """Make a job of an orphan again: paused, until it is resumed."""
        source.take_in(job_id)
        return source.job(job_id)

    @api.post("/api/cluster/down", status_code=202)
    def down(body: Down) -> dict[str, bool]:
        """End the manager: jobs are stopped with a checkpoint, or kept running."""
        on_down(body.keep_jobs)
        return {"keep_jobs": body.keep_jobs}

    metrics_of_source = PrometheusMetrics(source)

    @api.get("/metrics", response_class=PlainTextResponse)
    def metrics() -> Response:
        return Response(metrics_of_source.text(), media_type=CONTENT_TYPE_LATEST)


async def _events(source: Source) -> AsyncIterator[str]:
    seen, silent = -1, 0.0
    while True:
        version = source.version
        if version != seen:
            seen, silent = version, 0.0
            state = await asyncio.to_thread(lambda: json.dumps(source.state()))  # others are answered meanwhile
            yield f"event: state\ndata: {state}\n\n"
        elif silent >= BEAT_SECONDS:
            silent = 0.0
            yield ": still here\n\n"
        await asyncio.sleep(STREAM_SECONDS)
        silent += STREAM_SECONDS


def _add_page(api: FastAPI) -> None:
    static = Path(str(files("virtualflow.dashboard"))) / "static"

    @api.get("/", include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(static / "index.html")

    @api.get("/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        return HTMLResponse(_documentation(api))

    api.mount("/static", StaticFiles(directory=static), name="static")


def _documentation(api: FastAPI) -> str:
    """The API for people, without anything from elsewhere."""
    rows = []
    for path, verbs in api.openapi()["paths"].items():
        for verb, facts in verbs.items():
            summary = facts.get("description") or facts["summary"]
            body = facts.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            takes = body.get("$ref", "").rpartition("/")[2]
            cells = (verb.upper(), path, permissions.needed(verb.upper(), path), summary, takes)
            rows.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    return (
        "<!doctype html><meta charset=utf-8><title>VirtualFlow API</title><h1>VirtualFlow API</h1>"
        "<p>Send a token as <code>Authorization: Bearer TOKEN</code>. "
        'Machines read <a href="/openapi.json">openapi.json</a>.</p>'
        f"<table><tr><th>verb<th>path<th>role<th>what it does<th>takes</tr>{''.join(rows)}</table>"
    )
