"""``vf cluster orphans`` and ``restore``: what to do when a manager's records and its jobs' folders don't agree."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from virtualflow.cli.screen import screen
from virtualflow.errors import RecordsError
from virtualflow.manager import orphans as orphaned
from virtualflow.manager.backups import Backups
from virtualflow.manager.client import RECORDS, Client, folder, only_manager
from virtualflow.manager.records import Records


def orphans(
    adopt: Annotated[
        str | None, typer.Option(help="Turn this orphan into a paused job, for `vf resume JOB`.", metavar="JOB")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the folders of jobs that the manager has no record of. They are kept until `vf clean JOB`."""
    if adopt is not None:
        Client.find().post(f"/api/orphans/{adopt}/adopt")
    manager = Client.answering()
    listed = manager.get("/api/orphans") if manager is not None else _without_manager()
    if as_json:
        print(json.dumps(listed, indent=2))
        return
    table = Table("job", "name", "state", "step", "checkpoint", "reason", box=box.SIMPLE, pad_edge=False)
    for each in listed:
        checkpoint = Path(each["checkpoint"]).name if each["checkpoint"] else ""
        cells = (each["id"], each["name"], each["state"], str(each["step"]), checkpoint, each["reason"])
        table.add_row(*(Text(cell) for cell in cells))
    screen().print(table if listed else "no orphans: the manager has a record of every folder")


def _without_manager() -> list[dict[str, Any]]:
    records = folder() / RECORDS
    known: set[str] = set()
    if records.exists():
        with only_manager(), closing(Records(records)) as opened:
            known = {record.id for record in opened.all()}
    return [orphaned.described(each) for each in orphaned.strays(known)]


def restore(
    backup: Annotated[
        Path | None, typer.Argument(help="The backup to restore; the newest undamaged one by default.", metavar="FILE")
    ] = None,
) -> None:
    """Restore a backup of the manager's records, while no manager runs. The old records are moved aside."""
    backups = Backups((folder() / RECORDS).absolute())
    chosen = backup or backups.newest_whole()
    if chosen is None:
        raise RecordsError(f"there is no backup in {backups.folder} that can be read")
    with only_manager():
        aside = backups.restore(chosen)
    print(f"the records are those of {chosen.name} again; the old ones are {aside.name}*")
    print("`vf cluster up` compares them with the jobs' folders: nothing that has ended since is run again")
