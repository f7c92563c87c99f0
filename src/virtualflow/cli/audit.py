"""``vf cluster audit``: who has changed what in a cluster."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Column, Table

from virtualflow.cli.job_table import moment
from virtualflow.cli.options import seconds_of
from virtualflow.cli.screen import print_line, screen
from virtualflow.core.wording import counted
from virtualflow.manager.audit_log import entries_in
from virtualflow.manager.client import Client, folder

COLUMNS = ("token", "role", "from", "verb", "job", "what", "outcome")


def audit(
    since: Annotated[
        str | None, typer.Option(help="Only entries of this last time, such as 2h or 7d.", metavar="TIME")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one entry in each line.")] = False,
) -> None:
    """Show who has changed what in the cluster, and who was refused: by token, role and address."""
    begin = time.time() - seconds_of(since, "--since") if since is not None else 0.0
    remote = Client.remote()
    log = remote.get(f"/api/audit?since={begin:.3f}") if remote is not None else entries_in(folder(), begin)
    for entry in log["entries"] if as_json else ():
        print(json.dumps(entry))
    if not as_json:
        screen().print(_table(log["entries"]) if log["entries"] else "nobody has asked for any change")
    if log["damaged"]:
        print_line(f"warning: {counted(log['damaged'], 'line')} of the log can't be read", sys.stderr)


def _table(entries: list[dict[str, Any]]) -> Table:
    table = Table(Column("when", no_wrap=True), *COLUMNS, box=box.SIMPLE, pad_edge=False)
    for entry in entries:
        asked = " ".join(f"{name}={value}" for name, value in entry["asked"].items())
        what = " ".join(part for part in (entry["on"], asked, entry["why"]) if part)
        more = f" (and {entry['unlogged']} before it)" if entry["unlogged"] else ""
        who = entry["token"] or "(none)"
        table.add_row(
            moment(entry["time"]), who, entry["role"], entry["remote"], entry["verb"], entry["job"], what,
            entry["outcome"] + more,
        )  # fmt: skip
    return table
