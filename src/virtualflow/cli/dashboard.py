"""``vf dashboard``: the page of the manager; and the one of a single job, for ``vf run --dashboard``."""

from __future__ import annotations

import os
import secrets
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from virtualflow.errors import LaunchError
from virtualflow.job.folder import JobFolder
from virtualflow.job.listener import listen
from virtualflow.manager.client import Client
from virtualflow.manager.token_book import TokenBook


def dashboard(
    show: Annotated[bool, typer.Option("--open/--no-open", help="Open a browser here.")] = True,
) -> None:
    """Open the manager's dashboard. The link works once and logs the browser in."""
    link = link_to(Client.find())
    print(link, flush=True)
    if show:
        _open(link)


def link_to(client: Client) -> str:
    """A link to the page that works once."""
    return f"{client.address}/login?code={client.post('/api/login')['code']}"


@contextmanager
def of_one_job(folder: JobFolder) -> Iterator[None]:
    """Serve a page about the job of *folder* as long as the block runs."""
    with needed():
        from virtualflow.manager.api.serving import serving
        from virtualflow.manager.api.views import JobSource
    with (
        listen("127.0.0.1", 0) as listening,
        serving(JobSource(folder), TokenBook(secrets.token_bytes(32)), listening) as server,
    ):
        link = f"http://127.0.0.1:{listening.getsockname()[1]}{server.sign_in_path()}"
        print(f"dashboard: {link}", file=sys.stderr, flush=True)
        _open(link)
        yield


@contextmanager
def needed() -> Iterator[None]:
    """Say what to install if the server's libraries are not here."""
    try:
        yield
    except ImportError as error:
        raise LaunchError(
            f"this needs {error.name}, which is not installed: pip install 'virtualflow[cluster]'"
        ) from error


def _open(link: str) -> None:
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or sys.platform == "darwin":
        webbrowser.open(link)
