"""``vf sweep``, and the jobs that ``vf submit --sweep`` makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from virtualflow.cli.files import check_file, writing
from virtualflow.cli.job_table import console
from virtualflow.cli.sweeps import (
    Parameters,
    arguments_for,
    draw,
    names_in,
    new_sweep,
    result_table,
    results,
)
from virtualflow.cli.timeline import pyplot
from virtualflow.core.wording import counted
from virtualflow.errors import ManagerError
from virtualflow.manager.client import Client


def submit_all(client: Client, body: dict[str, Any], chosen: list[Parameters], *, as_json: bool) -> list[str]:
    """A job for each combination, all with the same copies of the script."""
    title = body["name"] or Path(body["script"]).stem
    name, ids = new_sweep(title), list[str]()
    for number, parameters in enumerate(chosen, 1):
        own = {"name": f"{title}-{number}", "sweep": name, "parameters": parameters}
        try:
            arguments = arguments_for(body["arguments"], parameters)
            ids.append(client.post("/api/jobs", **body | own | {"arguments": arguments})["id"])
        except ManagerError as error:
            if not ids:
                raise
            raise ManagerError(
                f"{len(ids)} of {len(chosen)} jobs of sweep {name} were submitted, then: {error} "
                f"`vf cancel {name}` ends those."
            ) from error
    print(
        json.dumps({"sweep": name, "ids": ids}) if as_json else f"sweep {name}: {counted(len(ids), 'job')}", flush=True
    )
    return ids


def sweep(
    name: Annotated[str, typer.Argument(help="As `vf submit --sweep` printed it.", metavar="SWEEP")],
    output: Annotated[
        Path | None, typer.Option("--plot", help="Draw a picture of the results, too.", metavar="FILE")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="What to draw: loss, or a metric of the script. Default: the last one.", metavar="NAME"),
    ] = None,
    along: Annotated[
        str | None, typer.Option(help="The parameter to draw it over. Default: the first one.", metavar="NAME")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the results of a sweep by parameter: a row for each job, and a picture.

    Example: vf submit --sweep lr=0.1,0.3 --sweep batch_size=64,128 train.py, then vf sweep train-7f3a --plot lr.png
    """
    if output is not None:
        check_file(output, "--plot")
    rows = results(Client.find().get(f"/api/sweeps/{name}"))
    if output is not None:
        figure = _picture(rows, name, metric, along)
        with writing(output, "--plot"):
            figure.savefig(output, dpi=120)
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        console(wide=False).print(result_table(rows))


def _picture(rows: list[dict[str, Any]], title: str, metric: str | None, along: str | None) -> Any:
    metrics, parameters = names_in(rows, "results"), names_in(rows, "parameters")
    if not metrics:
        raise ManagerError(f"no job of sweep {title} has a result to draw yet")
    for option, choice, known in (("--metric", metric, metrics), ("--along", along, parameters)):
        if choice is not None and choice not in known:
            raise ManagerError(f"{option} {choice}: sweep {title} has {', '.join(known)}")
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    draw(axes, rows, metric or metrics[-1], along or parameters[0])
    axes.set_title(title)
    plt.close(figure)
    return figure
