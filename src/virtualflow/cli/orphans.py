"""``vf cluster orphans`` and ``restore``: what to do when a manager's records and its jobs' folders don't agree."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from virtualflow.cli.screen import screen
from virtualflow.core.job_names import job_called
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
        manager = Client.find()
        names = {orphan["id"]: orphan["name"] for orphan in manager.get("/api/orphans")}
        manager.post(f"/api/orphans/{job_called(adopt, names) or adopt}/adopt")
    answering = Client.answering()
    listed = answering.get("/api/orphans") if answering is not None else _without_manager()
    if as_json:
        print(json.dumps(listed, indent=2))
        return
    table = Table("job", "name", "state", "step", "checkpoint", "reason", box=box.SIMPLE, pad_edge=False)
    for orphan in listed:
        checkpoint = Path(orphan["checkpoint"]).name if orphan["checkpoint"] else ""
        table.add_row(orphan["id"], orphan["name"], orphan["state"], str(orphan["step"]), checkpoint, orphan["reason"])
    screen().print(table if listed else "no orphans: the manager has a record of every folder")


def _without_manager() -> list[dict[str, Any]]:
    records = folder() / RECORDS
    known: set[str] = set()
    if records.exists():
        with only_manager(), closing(Records(records)) as opened:
            known = {record.id for record in opened.all()}
    return [orphaned.described(folder) for folder in orphaned.unrecorded(known)]


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
