"""What ``vf run`` and ``vf submit`` say of a job itself, and of what its owner asks of a cluster.

A field here is an option, and what it is called in the job's description or terms. With a field there, that is all:
nothing in between names it.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from virtualflow.cli.help import CHECKPOINTS, DEVICES
from virtualflow.cli.options import moment_of, preload_of, seconds_of
from virtualflow.core.verdicts import rate_of

CheckpointEvery = Annotated[
    int,
    typer.Option(
        help="Steps between automatic checkpoints; 0 for none.", min=0, metavar="STEPS", rich_help_panel=CHECKPOINTS
    ),
]


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Of the description, for a job of either verb."""

    name: Annotated[str, typer.Option(help="A name for the job; the script's name by default.", metavar="NAME")] = ""
    checkpoint_every: CheckpointEvery = 0
    preload: Annotated[
        str | None,
        typer.Option(
            help="Import these before workers start, so that they and later ones are ready at once. By default those "
            "packages that the script imports and that are known to be safe.",
            metavar="MODULE,...|none",
        ),
    ] = None
    sentinel: Annotated[
        str | None,
        typer.Option(
            help="The part of each batch that a second device runs again, to catch one that computes wrongly: 1/16, "
            "0.0625, or 1 for all of it. By default what the script says, or 0.",
            metavar="RATE",
        ),
    ] = None

    def described(self) -> dict[str, Any]:
        """The description's fields."""
        rate = None if self.sentinel is None else float(rate_of(self.sentinel))
        return asdict(self) | {"preload": preload_of(self.preload), "sentinel": rate}


@dataclass(frozen=True, slots=True)
class RunOptions(JobOptions):
    """The same for ``vf run``, whose jobs nothing else stops."""

    checkpoint_every: CheckpointEvery = 500


@dataclass(frozen=True, slots=True)
class SubmitOptions(JobOptions):
    """The same for a job of a manager's."""

    from_checkpoint: Annotated[
        Path | None,
        typer.Option(help="Begin from this checkpoint, of another job or the script's own.", metavar="FILE"),
    ] = None

    def described(self) -> dict[str, Any]:
        """The description's fields."""
        file = self.from_checkpoint
        return JobOptions.described(self) | {"from_checkpoint": str(file.absolute()) if file is not None else None}


@dataclass(frozen=True, slots=True)
class TermOptions:
    """What its owner asks of the cluster."""

    priority: Annotated[
        float, typer.Option(help="A larger one means more devices, or an earlier turn.", metavar="P")
    ] = 1.0
    demand: Annotated[
        int, typer.Option(help="The number of devices that the job asks for.", metavar="N", rich_help_panel=DEVICES)
    ] = 1
    min: Annotated[
        int, typer.Option("--min", help="Wait rather than run on fewer devices.", metavar="N", rich_help_panel=DEVICES)
    ] = 1
    virtual_nodes: Annotated[
        int | None,
        typer.Option(
            help="The script's virtual nodes, if you know: it then starts on all its devices.",
            metavar="N",
            rich_help_panel=DEVICES,
        ),
    ] = None
    expect: Annotated[
        str | None, typer.Option(help="The expected run time on its full demand, such as 90m or 2h.", metavar="TIME")
    ] = None
    retries: Annotated[
        int, typer.Option(help="How often to retry if the script fails.", metavar="N", rich_help_panel=CHECKPOINTS)
    ] = 0
    after: Annotated[
        list[str] | None,
        typer.Option(
            help="Start when this job, or every job of this sweep, is done; if it fails, this one is cancelled. May be "
            "repeated.",
            metavar="JOB",
        ),
    ] = None
    by: Annotated[
        str | None,
        typer.Option(
            help="Its deadline: 18:00, 2026-12-31 18:00, or a time from now such as 6h. `vf queue` and the page say "
            "early whether it will be met.",
            metavar="TIME",
        ),
    ] = None
    notify: Annotated[
        str, typer.Option(help="When it ends, POST to this address, or run this command.", metavar="URL|COMMAND")
    ] = ""
    owner: Annotated[str | None, typer.Option(help="Whose job it is, where that is not you.", metavar="USER")] = None

    def terms(self) -> dict[str, Any]:
        """The terms' fields; of the owner only what was given."""
        terms = asdict(self)
        expect, by = terms.pop("expect"), terms["by"]
        terms |= {"by": moment_of(by, "--by", time.time()) if by is not None else None, "after": self.after or []}
        return terms | {"expect_seconds": seconds_of(expect, "--expect") if expect is not None else None}
