"""``vf tensorboard``: a job's scalars for TensorBoard."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from virtualflow.cli.files import check_folder
from virtualflow.errors import LaunchError
from virtualflow.events import STREAM, EventReader
from virtualflow.job.folder import JobFolder
from virtualflow.loggers.scalars_of_events import scalars

LOOK_SECONDS = 0.5


def tensorboard(
    job: Annotated[str, typer.Argument(help="The job's id.", metavar="JOB")],
    output: Annotated[Path, typer.Option("-o", "--output", help="TensorBoard's --logdir.", metavar="DIR")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the job ends.")] = False,
) -> None:
    """Write a job's loss, speed, devices, evaluations and pauses for TensorBoard, by global step."""
    try:
        from tensorboardX import SummaryWriter  # type: ignore[import-untyped]
    except ImportError as error:
        raise LaunchError("this needs tensorboardX: pip install 'virtualflow[tensorboard]'") from error
    folder = JobFolder.of(job)
    check_folder(output)
    reader = EventReader(folder.path / STREAM)
    with SummaryWriter(str(output / job)) as writer:
        try:
            while True:
                ended = not folder.is_locked()
                for at, event in reader.read():
                    step, values = scalars(event)
                    for name, value in values.items():
                        writer.add_scalar(name, value, step, walltime=at)
                if ended or not follow:
                    return
                writer.flush()
                time.sleep(LOOK_SECONDS)
        except KeyboardInterrupt:
            return
